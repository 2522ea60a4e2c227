"""Memory that processes of a group share stays charged as long as a process holds it.

While another process starts or is resumed, some of its memory is in no process's figure, and could
be shared memory. So the checks that compare figures run alone, and none runs beside suspensions.
"""

from __future__ import annotations

import time

from harness import (
    CAP,
    GIB,
    MIB,
    Outcome,
    Program,
    bare,
    capped,
    check,
    compare_at_rest,
    differences_at_rest,
    judged,
    mib,
    python,
    started,
)
from judge import Judge

OUT_OF_MEMORY = 2
SIZE = 512 * MIB


def two(outcome: Outcome, name: str) -> list[Program]:
    """Starts two programs of one group, with a context each."""
    programs = [capped(python("lender.py"), name=name) for _ in range(2)]
    for program in programs:
        started(outcome, program)
    return programs


def good(outcome: Outcome, program: Program, do: str, **arguments: object) -> dict:
    """Sends an order that must succeed."""
    answer = program.ask(do, **arguments)
    outcome.expect(answer.get("status") == 0, f"{do} {arguments.get('name', '')}: {answer}")
    return answer


def until_full(outcome: Outcome, lend, least: int) -> int:
    """Lends pieces until one is refused, and returns their number."""
    for number in range(16):
        if not lend(f"m{number}"):
            outcome.expect(number >= least, f"refused after {number} pieces of {mib(SIZE)}")
            return number
    outcome.expect(False, "never refused")
    return 16


@check("lent-ipc", timeout=60, lane="alone")
def ipc(outcome: Outcome) -> None:
    """Memory freed by its owner while another process has it open stays charged."""
    with judged(outcome, CAP) as judge:
        owner, opener = two(outcome, "ipc")
        good(outcome, owner, "take", name="first", size=SIZE)
        handle = good(outcome, owner, "ipc_get", name="first")["handle"]
        good(outcome, opener, "ipc_open", name="first", handle=handle)
        compare_at_rest(outcome, judge, "opened")
        good(outcome, owner, "give", name="first")
        good(outcome, opener, "alloc", size=4 * MIB)
        compare_at_rest(outcome, judge, "freed by its owner")

        def lend(name: str) -> bool:
            if owner.ask("take", name=name, size=SIZE).get("status") == OUT_OF_MEMORY:
                return False
            handle = good(outcome, owner, "ipc_get", name=name)["handle"]
            good(outcome, opener, "ipc_open", name=name, handle=handle)
            good(outcome, owner, "give", name=name)
            return True

        pieces = until_full(outcome, lend, 4)
        for name in ["first", *(f"m{number}" for number in range(pieces))]:
            good(outcome, opener, "ipc_close", name=name)
        good(outcome, opener, "free")
        compare_at_rest(outcome, judge, "closed")
        good(outcome, owner, "alloc", size=2 * GIB)
        for program in (owner, opener):
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    outcome.key.append(f"{pieces + 1} pieces of {mib(SIZE)}")


@check("lent-descriptor", timeout=60, lane="alone")
def descriptor(outcome: Outcome) -> None:
    """The same for cuMemCreate memory shared by descriptors, also if its exporter is killed."""
    with judged(outcome, CAP) as judge:
        owner, importer = two(outcome, "descriptor")

        def lend(name: str) -> bool:
            if owner.ask("create", name=name, size=SIZE).get("status") == OUT_OF_MEMORY:
                return False
            exported = good(outcome, owner, "export", name=name)
            good(
                outcome,
                importer,
                "import",
                name=name,
                pid=exported["pid"],
                descriptor=exported["descriptor"],
                size=SIZE,
            )
            good(outcome, owner, "close", name=name)
            good(outcome, owner, "release", name=name)
            return True

        outcome.expect(lend("first"), "the first piece is refused")
        good(outcome, importer, "alloc", size=4 * MIB)
        compare_at_rest(outcome, judge, "released by its exporter")
        pieces = until_full(outcome, lend, 4)
        good(outcome, importer, "unmap", name="first")
        good(outcome, importer, "free")
        compare_at_rest(outcome, judge, "one unmapped")
        good(outcome, owner, "create", name="last", size=SIZE)
        exported = good(outcome, owner, "export", name="last")
        good(
            outcome,
            importer,
            "import",
            name="last",
            pid=exported["pid"],
            descriptor=exported["descriptor"],
            size=SIZE,
        )
        owner.kill()
        # The driver moves the memory to the importer once the killed process is gone.
        time.sleep(1)
        judge.settled()
        good(outcome, importer, "alloc", size=4 * MIB)
        compare_at_rest(outcome, judge, "its exporter killed")
        outcome.expect(importer.finish() == 0, f"ended badly: {importer.tail()}")
    outcome.key.append(f"{pieces + 1} pieces of {mib(SIZE)}")


@check("lent-stirred", timeout=60, lane="suspend")
def stirred(outcome: Outcome) -> None:
    """Shared memory stays charged while a process outside the group allocates and frees."""
    # The stranger has a session of its own, so that the judge does not count it.
    stranger = bare(["setsid", *python("lender.py")])
    started(outcome, stranger)
    with judged(outcome, CAP) as judge:
        owner, other = two(outcome, "stirred")
        stranger.say("stir", size=SIZE)
        off = [turn_of_both(outcome, judge, owner, other, str(turn)) for turn in range(8)]
        stranger.say("start")
        stirring = stranger.reply(30)
        stranger.reply(30)
        outcome.expect(
            stirring.get("status") == 0 and stirring.get("rounds", 0) > 100,
            f"the stranger: {stirring}",
        )
        outcome.expect(
            turn_of_both(outcome, judge, owner, other, "in the end") == 0,
            "not exact without the stranger",
        )
        for program in (owner, other):
            # The whole limit is available again.
            good(outcome, program, "alloc", size=1400 * MIB)
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    outcome.expect(stranger.finish() == 0, f"the stranger ended badly: {stranger.tail()}")
    outcome.key.append(
        f"{stirring.get('rounds')} times {mib(SIZE)} beside it, {sum(map(bool, off))} of {len(off)}"
        " turns too much charged for a while"
    )


def turn_of_both(outcome: Outcome, judge: Judge, owner: Program, other: Program, turn: str) -> int:
    """Lends a piece of either kind, which its owner frees before the other process does. Returns
    how many bytes too many are charged in the end.
    """
    good(outcome, owner, "take", name="ipc", size=SIZE)
    handle = good(outcome, owner, "ipc_get", name="ipc")["handle"]
    good(outcome, other, "ipc_open", name="ipc", handle=handle)
    good(outcome, owner, "create", name="piece", size=SIZE)
    exported = good(outcome, owner, "export", name="piece")
    good(
        outcome,
        other,
        "import",
        name="piece",
        pid=exported["pid"],
        descriptor=exported["descriptor"],
        size=SIZE,
    )
    good(outcome, owner, "close", name="piece")
    good(outcome, owner, "give", name="ipc")
    good(outcome, owner, "release", name="piece")
    # This call makes the process measure, and charges the memory that has moved to it.
    good(outcome, other, "alloc", size=4 * MIB)
    over(outcome, judge, f"{turn}: let go of by its owner")
    good(outcome, other, "ipc_close", name="ipc")
    good(outcome, other, "unmap", name="piece")
    good(outcome, other, "free")
    return over(outcome, judge, f"{turn}: let go of by all")


def over(outcome: Outcome, judge: Judge, label: str) -> int:
    """Returns by how many bytes the group's charge exceeds NVML's figures, which must not be
    negative.
    """
    beyond = sum(differences_at_rest(outcome, judge, label).values())
    outcome.expect(beyond >= 0, f"{label}: {-beyond / MIB:.1f} MiB in use are not charged")
    return beyond
