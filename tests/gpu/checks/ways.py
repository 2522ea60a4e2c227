"""One check for each way to take memory: until a refusal, or three times the limit, while NVML is
sampled.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from harness import (
    CAP,
    EXACT,
    HERE,
    MIB,
    Outcome,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    python,
)

OUT_OF_MEMORY = 2


@dataclass(frozen=True)
class Kind:
    """The properties of a way to take memory. Sizes are bytes."""

    short: int = 172 * MIB
    """How far below the limit it may be refused: one of its steps, and what pools keep ready."""
    stays: int = EXACT
    """Bytes that the driver keeps after everything was freed."""
    counted: bool = True
    """Whether it takes device memory at all."""
    again: bool = True
    """Whether one more gets the same answer: the reserve may pay for a stream."""


KINDS = {
    "contexts": Kind(short=700 * MIB, stays=8 * MIB),
    "device-heap": Kind(short=CAP, stays=8 * MIB),
    "stack-limit": Kind(short=340 * MIB),
    "local-memory": Kind(short=340 * MIB, stays=CAP),
    "local-memory-big": Kind(short=CAP),
    "graph-one-launch": Kind(short=CAP, stays=8 * MIB),
    "graph-two-nodes": Kind(short=300 * MIB),
    "module-variables": Kind(short=340 * MIB, stays=8 * MIB),
    "library-variables": Kind(short=340 * MIB, stays=8 * MIB),
    "library-occupancy": Kind(short=340 * MIB, stays=8 * MIB),
    "library-node": Kind(short=340 * MIB, stays=8 * MIB),
    "library-everywhere": Kind(short=700 * MIB, stays=8 * MIB),
    "async-kept-pool": Kind(short=300 * MIB),
    "streams": Kind(stays=CAP, again=False),
    "host": Kind(counted=False),
}


def take(outcome: Outcome, name: str) -> None:
    """Tests one way, from the first byte to the last and back."""
    kind = KINDS.get(name, Kind())
    with judged(outcome, CAP) as judge:
        program = capped(python("ways.py", name, str(CAP)))
        program.reply(30)
        program.ask("start")
        before = judge.settled()["sum_last"]
        found = program.ask("take", 60)
        outcome.figures["take"] = found
        peak = judge.settled()["sum_peak"]
        if kind.counted:
            outcome.expect(
                found.get("status") == OUT_OF_MEMORY,
                f"the refusal was {found.get('status')}: {found}",
            )
            outcome.expect(CAP - peak <= kind.short, f"refused {mib(CAP - peak)} before the cap")
            outcome.expect(program.refusals(), "no refusal line on stderr")
        else:
            outcome.expect(found.get("status") == 0, f"{found}")
            outcome.expect(peak - before <= EXACT, f"NVML shows {mib(peak - before)} of it")
        outcome.expect(
            found.get("total") == CAP and found.get("free", CAP) <= CAP - before,
            f"the view: {found}",
        )
        same = program.ask("again").get("status") == found.get("status")
        outcome.expect(same or not kind.again, "once more, and another answer")
        compare_at_rest(outcome, judge, "full")
        freed = program.ask("free", 60)
        outcome.expect(freed.get("info") == 0, f"giving back: {freed}")
        after = judge.settled()["sum_last"]
        outcome.expect(after - before <= kind.stays, f"{mib(after - before)} did not come back")
        compare_at_rest(outcome, judge, "freed")
        status = program.finish()
        outcome.expect(status == 0, f"ended with {status}: {program.tail()}")
    outcome.key.append(
        f"peak {mib(judge_peak(outcome))}, {found.get('times')} times, {mib(found.get('taken', 0))}"
        " asked for"
    )


def judge_peak(outcome: Outcome) -> int:
    """Returns the largest figure that NVML showed."""
    return outcome.figures["nvml"]["sum_peak"]


def names() -> list[str]:
    """Returns the ways of work/ways.py, read without loading the driver."""
    tree = ast.parse((HERE / "work" / "ways.py").read_text())
    calls = [
        each
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for each in node.decorator_list
    ]
    return [
        each.args[0].value for each in calls if isinstance(each, ast.Call) and each.func.id == "way"
    ]


def register(name: str) -> None:
    def run(outcome: Outcome) -> None:
        take(outcome, name)

    run.__doc__ = f"Memory by {name}, until refused."
    check(f"way-{name}", timeout=90)(run)


for each_name in names():
    register(each_name)
