"""Managed memory from pools and variables, and code that seems to take less memory than it does."""

from __future__ import annotations

from harness import (
    CAP,
    GIB,
    MIB,
    Judge,
    Outcome,
    Program,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    python,
    started,
    usage_by_pid,
)

OUT_OF_MEMORY = 2
FIT = 3
"""The number of 1 GiB pieces that fit into 4 GiB beside a context."""
LARGE = ".visible .global .align 4 .b8 data[6442450944];"
"""6 GiB."""
HIDDEN = {
    "a comment with .extern": f"// .extern declarations: none\n{LARGE}",
    "a comment with .managed": LARGE.replace(".align", "/* .managed */ .align"),
    "hexadecimal": LARGE.replace("6442450944", "0x180000000"),
    "two dimensions": LARGE.replace("6442450944", "6144][1048576"),
}


def agent(outcome: Outcome) -> tuple[Program, int]:
    """Starts the agent with a context; returns it and its pid."""
    program = capped(python("managed.py"))
    return program, started(outcome, program)


def expect_managed(outcome: Outcome, judge: Judge, pid: int, size: int, label: str) -> None:
    """Asserts what `gpulimit ps` reports as managed memory, which together with NVML's figure must
    stay below the limit.
    """
    compare_at_rest(outcome, judge, label)
    said = usage_by_pid(judge.index).get(pid, {}).get("managed", 0)
    outcome.expect(
        size <= said <= size + 34 * MIB, f"{label}: {mib(said)} of managed memory, not {mib(size)}"
    )
    both = judge.settled()["sum_last"] + said
    outcome.expect(both <= CAP, f"{label}: NVML and managed memory are {mib(both)}")


@check("managed-pools", timeout=120)
def managed_pools(outcome: Outcome) -> None:
    """Pools of managed memory are charged in full, until they are destroyed."""
    for place in ("device", "none", "default"):
        with judged(outcome, CAP, place) as judge:
            program, pid = agent(outcome)
            outcome.expect(program.ask("make", place=place).get("status") == 0, f"{place}: no pool")
            found = program.ask("take", 60, size=GIB, times=12)
            outcome.expect(found == {"done": FIT, "status": OUT_OF_MEMORY}, f"{place}: {found}")
            expect_managed(outcome, judge, pid, FIT * GIB, f"{place}, taken")
            outcome.expect(program.ask("give").get("status") == 0, f"{place}: giving back")
            expect_managed(outcome, judge, pid, FIT * GIB, f"{place}, given back")
            again = program.ask("take", 60, size=GIB, times=FIT)
            outcome.expect(again.get("done") == FIT, f"{place}: what it had before: {again}")
            program.ask("give")
            if place != "default":
                outcome.expect(program.ask("destroy").get("status") == 0, f"{place}: not destroyed")
                expect_managed(outcome, judge, pid, 0, f"{place}, destroyed")
            outcome.expect(program.refusals(), f"{place}: no refusal line")
            outcome.expect(program.finish() == 0, f"{place}: {program.tail()}")
    outcome.key.append(f"{FIT} of 12 GiB by each of three pools")


@check("managed-variables", timeout=60)
def managed_variables(outcome: Outcome) -> None:
    """Managed variables of modules and libraries are charged by the call that loads them."""
    declaration = ".visible .global .attribute(.managed) .align 4 .b8 data[1073741824];"
    for library in (False, True):
        label = "libraries" if library else "modules"
        with judged(outcome, CAP, label) as judge:
            program, pid = agent(outcome)
            found = program.ask("load", 60, declarations=declaration, times=12, library=library)
            outcome.expect(found == {"done": FIT, "status": OUT_OF_MEMORY}, f"{label}: {found}")
            expect_managed(outcome, judge, pid, FIT * GIB, label)
            outcome.expect(program.ask("unload").get("status") == 0, f"{label}: not unloaded")
            expect_managed(outcome, judge, pid, 0, f"{label}, unloaded")
            outcome.expect(program.finish() == 0, f"{label}: {program.tail()}")
    outcome.key.append(f"{FIT} of 12 GiB by modules, as much by libraries")


@check("hidden-variables", timeout=60)
def hidden_variables(outcome: Outcome) -> None:
    """Code that seems to declare less than it takes is refused before it is loaded."""
    with judged(outcome, CAP):
        program, _ = agent(outcome)
        for label, declarations in HIDDEN.items():
            for library in (False, True):
                found = program.ask("load", 60, declarations=declarations, library=library)
                outcome.expect(
                    found.get("status") == OUT_OF_MEMORY, f"{label}, library {library}: {found}"
                )
        found = program.ask("load", declarations=f"// {LARGE}\n/* {LARGE} */")
        outcome.expect(found.get("status") == 0, f"commented out: {found}")
        outcome.expect(program.ask("unload").get("status") == 0, "not unloaded")
        outcome.expect(program.finish() == 0, f"{program.tail()}")
    outcome.key.append(f"{len(HIDDEN)} ways, all refused")
