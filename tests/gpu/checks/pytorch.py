"""PyTorch's three allocators, filled until its own out-of-memory exception."""

from __future__ import annotations

from harness import CAP, GIB, Outcome, capped, check, compare_at_rest, judged, mib, python, reached


def fill(outcome: Outcome, configuration: str, backend: str = "native") -> None:
    """Fills, works at the limit, frees and fills again, while the judge watches."""
    # PyTorch uses the second name from 2.9 on.
    variables = (
        {"PYTORCH_CUDA_ALLOC_CONF": configuration, "PYTORCH_ALLOC_CONF": configuration}
        if configuration
        else {}
    )
    with judged(outcome, CAP) as judge:
        program = capped(python("torch_agent.py"), **variables)
        program.reply(90)
        work = program.ask("kernels")
        outcome.expect("checksum" in work, f"the kernels failed: {work}")
        seen = program.ask("info")
        outcome.expect(seen.get("backend") == backend, f"the allocator is {seen.get('backend')}")
        first = program.ask("fill", 120)
        outcome.figures["fill"] = first
        outcome.expect(
            first.get("is_torch_oom"),
            f"not torch.cuda.OutOfMemoryError but {first.get('exception')}: {first.get('text')}",
        )
        compare_at_rest(outcome, judge, "full")
        edge = program.ask("edge")
        outcome.figures["edge"] = edge
        reached(outcome, judge.read(), CAP)
        program.ask("free", keep_cache=True)
        again = program.ask("alloc", size=GIB)
        outcome.expect("error" not in again, f"no 1 GiB after freeing with the cache kept: {again}")
        program.ask("free")
        compare_at_rest(outcome, judge, "freed")
        work = program.ask("kernels")
        outcome.expect("checksum" in work, f"the kernels failed after the fill: {work}")
        second = program.ask("fill", 120, seed=9)
        outcome.expect(
            second.get("is_torch_oom"),
            f"second fill: {second.get('exception')}: {second.get('text')}",
        )
        outcome.figures["second_fill"] = second
        outcome.key.append(f"fill {mib(first.get('bytes', 0))}, {first.get('exception', '-')}")
        outcome.key.append(f"edge {edge.get('outcomes', edge)}")
        status = program.finish()
        outcome.expect(status == 0, f"ended with {status}: {program.tail()}")
        outcome.expect(program.refusals(), "no refusal line on stderr")


@check("torch-default", timeout=100, needs=("torch",))
def torch_default(outcome: Outcome) -> None:
    """PyTorch's default allocator stays under the limit and raises its own exception."""
    fill(outcome, "")


@check("torch-expandable", timeout=100, needs=("torch",))
def torch_expandable(outcome: Outcome) -> None:
    """PyTorch with expandable segments (VMM) stays under the limit."""
    fill(outcome, "expandable_segments:True")


@check("torch-async", timeout=100, needs=("torch",))
def torch_async(outcome: Outcome) -> None:
    """PyTorch on cudaMallocAsync (pools) stays under the limit."""
    fill(outcome, "backend:cudaMallocAsync", "cudaMallocAsync")
