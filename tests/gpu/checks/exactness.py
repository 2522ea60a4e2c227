"""gpulimit's figures equal NVML's at rest, to 2 MiB."""

from __future__ import annotations

from harness import CAP, MIB, Outcome, capped, check, compare_at_rest, judged, python, started


@check("exact-driver", timeout=60)
def exact_driver(outcome: Outcome) -> None:
    """Plain driver calls: context only, odd sizes, half freed, all freed."""
    with judged(outcome, CAP) as judge:
        program = capped(python("driver.py"))
        started(outcome, program)
        worst = [compare_at_rest(outcome, judge, "context")]
        for size, times in (
            (1, 1),
            (4096, 3000),
            (700_000, 41),
            (1_048_577, 40),
            (2_097_153, 17),
            (100_000_003, 9),
        ):
            answer = program.ask("alloc", size=size, times=times)
            outcome.expect(answer.get("done") == times, f"{times} × {size}: {answer}")
            worst.append(compare_at_rest(outcome, judge, f"+{times}x{size}"))
        program.ask("churn", seed=5, rounds=300, largest=80 * MIB)
        worst.append(compare_at_rest(outcome, judge, "after churn"))
        program.ask("free")
        worst.append(compare_at_rest(outcome, judge, "all freed"))
        program.finish()
    outcome.key.append(f"{len(worst)} states, worst {max(worst, key=abs) / MIB:+.2f} MiB")


@check("exact-pools", timeout=60)
def exact_pools(outcome: Outcome) -> None:
    """A pool's reserve is charged exactly, whatever its threshold keeps of it."""
    with judged(outcome, CAP) as judge:
        program = capped(python("driver.py"))
        started(outcome, program)
        states = []
        for label, order, arguments in (
            ("taken", "pool_take", {"size": 50 * MIB + 4711, "times": 20}),
            ("given back, nothing kept", "pool_give", {}),
            ("all is to be kept", "pool_keep", {"threshold": (1 << 64) - 1}),
            ("taken again", "pool_take", {"size": 50 * MIB + 4711, "times": 20}),
            ("given back, all kept", "pool_give", {}),
            ("a lower threshold", "pool_keep", {"threshold": 300 * MIB}),
            ("synchronised", "synchronise", {}),
            ("a third time", "pool_take", {"size": 700_001, "times": 900}),
            ("given back, a part kept", "pool_give", {}),
            ("trimmed", "pool_trim", {"keep": 100 * MIB}),
            ("nothing to be kept", "pool_keep", {"threshold": 0}),
            ("synchronised again", "synchronise", {}),
        ):
            answer = program.ask(order, **arguments)
            outcome.expect(answer.get("status") == 0, f"{label}: {answer}")
            states.append((label, compare_at_rest(outcome, judge, label)))
        seen = {label: outcome.figures["at_rest"][label]["nvml"] for label, _ in states}
        kept = seen["given back, all kept"] - seen["given back, nothing kept"]
        outcome.expect(
            kept >= 20 * 50 * MIB, f"the pool kept {kept / MIB:.1f} MiB: nothing was tried"
        )
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    worst = max((off for _, off in states), key=abs)
    outcome.key.append(
        f"{len(states)} states, worst {worst / MIB:+.2f} MiB, {kept / MIB:.0f} MiB kept"
    )


@check("exact-torch", timeout=150, needs=("torch",))
def exact_torch(outcome: Outcome) -> None:
    """PyTorch: context, kernels, linear, pool and VMM memory, streams, graphs."""
    worst: list[int] = []
    for label, configuration in (
        ("linear", ""),
        ("vmm", "expandable_segments:True"),
        ("pool", "backend:cudaMallocAsync"),
    ):
        variables = (
            {"PYTORCH_CUDA_ALLOC_CONF": configuration, "PYTORCH_ALLOC_CONF": configuration}
            if configuration
            else {}
        )
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
