"""What we report equals what NVML shows, at rest, to 2 MiB."""

from __future__ import annotations

from harness import CAP, MIB, Outcome, capped, check, compare_at_rest, judged, python


@check("exact-driver", timeout=60)
def exact_driver(outcome: Outcome) -> None:
    """Plain driver calls: context only, odd sizes, half freed, all freed."""
    with judged(outcome, CAP) as judge:
        program = capped(python("driver.py"))
        program.reply(30)
        outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
        worst = [compare_at_rest(outcome, judge, "context")]
        for size, times in ((1, 1), (4096, 3000), (700_000, 41), (1_048_577, 40), (2_097_153, 17), (100_000_003, 9)):
            answer = program.ask("alloc", size=size, times=times)
            outcome.expect(answer.get("done") == times, f"{times} × {size}: {answer}")
            worst.append(compare_at_rest(outcome, judge, f"+{times}x{size}"))
        program.ask("churn", seed=5, rounds=300, largest=80 * MIB)
        worst.append(compare_at_rest(outcome, judge, "after churn"))
        program.ask("free")
        worst.append(compare_at_rest(outcome, judge, "all freed"))
        program.finish()
    outcome.key.append(f"{len(worst)} states, worst {max(worst, key=abs) / MIB:+.2f} MiB")


@check("exact-torch", timeout=150, needs=("torch",))
def exact_torch(outcome: Outcome) -> None:
    """PyTorch: context, kernels, linear, pool and VMM memory, streams, graphs."""
    worst: list[int] = []
    for label, configuration in (("linear", ""), ("vmm", "expandable_segments:True"), ("pool", "backend:cudaMallocAsync")):
        variables = {"PYTORCH_CUDA_ALLOC_CONF": configuration, "PYTORCH_ALLOC_CONF": configuration} if configuration else {}
        with judged(outcome, CAP, label) as judge:
            program = capped(python("torch_agent.py"), **variables)
            program.reply(90)
            for state, order, arguments in (
                ("context", "start", {}),
                ("kernels", "kernels", {}),
                ("odd sizes", "alloc", {"size": 33_333_333, "times": 20}),
                ("streams", "streams", {"count": 16}),
                ("graph", "graph", {}),
                ("freed", "free", {}),
            ):
                answer = program.ask(order, **arguments)
                outcome.expect("error" not in answer, f"{label}, {state}: {answer}")
                worst.append(compare_at_rest(outcome, judge, f"{label}: {state}"))
            program.finish()
    outcome.key.append(f"{len(worst)} states, worst {max(worst, key=abs) / MIB:+.2f} MiB")
