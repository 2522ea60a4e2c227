"""CuPy's allocators, filled until cupy.cuda.memory.OutOfMemoryError."""

from __future__ import annotations

from harness import CAP, GIB, Outcome, capped, check, compare_at_rest, judged, mib, python, reached


@check("cupy", timeout=90, needs=("cupy",))
def cupy(outcome: Outcome) -> None:
    """CuPy's pool and its stream-ordered pool stay under the limit."""
    for allocator in ("pool", "async"):
        with judged(outcome, CAP, allocator) as judge:
            program = capped(python("cupy_agent.py"))
            program.reply(60)
            program.ask("use", allocator=allocator)
            work = program.ask("kernels")
            outcome.expect("checksum" in work, f"{allocator}: the kernels failed: {work}")
            found = program.ask("fill", 60)
            outcome.figures[f"fill_{allocator}"] = found
            # Some versions of the stream-ordered pool pass on the runtime's own error.
            own = found.get("is_cupy_oom") or (
                allocator == "async" and "cudaErrorMemoryAllocation" in found.get("text", "")
            )
            outcome.expect(own, f"{allocator}: {found.get('exception')}: {found.get('text')}")
            compare_at_rest(outcome, judge, allocator)
            reached(outcome, judge.read(), CAP)
            program.ask("free")
            again = program.ask("alloc", size=GIB)
            outcome.expect("error" not in again, f"{allocator}: no 1 GiB after freeing: {again}")
            status = program.finish()
            outcome.expect(status == 0, f"{allocator}: ended with {status}: {program.tail()}")
        outcome.key.append(f"{allocator} fill {mib(found.get('bytes', 0))}")
