"""A program that another process moves off the GPU and back stays charged, although the driver does
not list it meanwhile.
"""

from __future__ import annotations

from harness import (
    CAP,
    GIB,
    MIB,
    Outcome,
    Program,
    Skip,
    bare,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    python,
    started,
    usage_by_pid,
)

SUCCESS, NOT_SUPPORTED = 0, 801
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
PIECE, PIECES = 256 * MIB, 6
GROUP = "checkpoint"


def tool() -> Program:
    """Starts the process that checkpoints the other programs."""
    program = bare(python("checkpoint.py"))
    program.reply(30)
    lacking = program.ask("start")["lacking"]
    if lacking:
        program.finish()
        raise Skip(f"this driver has no cuCheckpointProcess{lacking[0]}")
    return program


@check("checkpoint", timeout=120)
def checkpoint(outcome: Outcome) -> None:
    """A checkpointed program's memory is kept for it, and is restored with its contents."""
    mover = tool()
    with judged(outcome, CAP) as judge:
        worker, other = (capped(python("driver.py"), name=GROUP) for _ in range(2))
        try:
            pid, _ = (started(outcome, program) for program in (worker, other))
            taken = worker.ask("alloc", size=PIECE, times=PIECES)
            outcome.expect(taken.get("done") == PIECES, f"the worker got {taken}")
            outcome.expect(
                worker.ask("mark", size=PIECE).get("status") == SUCCESS,
                "the worker could not write",
            )
            compare_at_rest(outcome, judge, "running")
            before = usage_by_pid(judge.index)[pid]

            def step(name: str, state: int) -> None:
                """Makes one step, which must lead to `state`, and notes NVML's and gpulimit's
                figures of the worker.
                """
                answer = mover.ask("change", name=name, pid=pid, timeout=90)
                if answer.get("status") == NOT_SUPPORTED and name in ("Lock", "Checkpoint"):
                    raise Skip(f"cuCheckpointProcess{name} is not supported here")
                outcome.expect(answer.get("status") == SUCCESS, f"{name}: {answer}")
                found = mover.ask("state", pid=pid)
                outcome.expect(
                    found == {"status": SUCCESS, "state": state}, f"after {name}: {found}"
                )
                # The library asks this before it believes that its process was suspended.
                own = worker.ask("own_state")
                outcome.expect(own == found, f"the worker itself finds {own} after {name}")
                seen, ours = judge.settled()["last"].get(str(pid)), usage_by_pid(judge.index).get(
                    pid
                )
                outcome.figures[name] = {"nvml": seen, "ours": ours}
                outcome.expect(
                    ours and ours["total"] >= before["total"],
                    f"after {name} {ours} is charged, before {before}",
                )
                if state == CHECKPOINTED:
                    outcome.expect(
                        not seen, f"NVML shows {mib(seen or 0)} of a checkpointed program"
                    )

            step("Lock", LOCKED)
            step("Checkpoint", CHECKPOINTED)
            filled = other.ask("fill", seed=11, largest=128 * MIB)
            outcome.expect(filled.get("status") == 2, f"beside it: {filled}")
            room = CAP - before["seen"]
            held = judge.settled()["sum_last"]
            outcome.figures["beside"] = {"held": held, "room": room}
            outcome.expect(held <= room, f"others got {mib(held)}, there was room for {mib(room)}")
            outcome.expect(room - held <= 256 * MIB, f"others got {mib(held)} of {mib(room)} only")
            step("Restore", LOCKED)
            step("Unlock", RUNNING)
            compare_at_rest(outcome, judge, "restored")
            marked = worker.ask("marked", size=PIECE)
            outcome.expect(marked == {"status": SUCCESS, "wrong": 0}, f"what was in it: {marked}")
            outcome.expect(
                worker.ask("alloc", size=GIB).get("status") == 2, "the limit holds no longer"
            )
            for program in (worker, other):
                outcome.expect(
                    program.ask("free").get("status") == SUCCESS,
                    f"not given back: {program.tail()}",
                )
            outcome.expect(
                worker.finish() == 0 and other.finish() == 0,
                f"a bad end: {worker.tail()} {other.tail()}",
            )
        finally:
            # A program that is still locked can only be killed.
            for program in (worker, other):
                program.kill()
            mover.finish()
        seen = judge.read()
    outcome.key.append(f"{mib(before['seen'])} away and back, peak {mib(seen['sum_peak'])}")
