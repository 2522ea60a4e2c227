"""Numba's CUDA target, filled until its own out-of-memory error."""

from __future__ import annotations

from harness import CAP, GIB, Outcome, capped, check, compare_at_rest, judged, mib, python, reached

OUT_OF_MEMORY = ("OUT_OF_MEMORY", "out of memory", "MemoryError")


@check("numba", timeout=90, needs=("numba",))
def numba(outcome: Outcome) -> None:
    """Numba stays under the limit and raises its own out-of-memory error."""
    with judged(outcome, CAP) as judge:
        program = capped(python("numba_agent.py"))
        program.reply(60)
        work = program.ask("kernels")
        outcome.expect("checksum" in work, f"the kernel failed: {work}")
        found = program.ask("fill", 60)
        outcome.figures["fill"] = found
        said = f"{found.get('exception')}: {found.get('text')}"
        outcome.expect(
            any(word in said for word in OUT_OF_MEMORY), f"not an out-of-memory error: {said}"
        )
        compare_at_rest(outcome, judge, "full")
        reached(outcome, judge.read(), CAP)
        program.ask("free")
        again = program.ask("alloc", size=GIB)
        outcome.expect("error" not in again, f"no 1 GiB after freeing: {again}")
        outcome.key.append(f"fill {mib(found.get('bytes', 0))}, {found.get('exception', '-')}")
        status = program.finish()
        outcome.expect(status == 0, f"ended with {status}: {program.tail()}")
