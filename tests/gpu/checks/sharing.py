"""Processes of one group share one limit."""

from __future__ import annotations

from harness import (
    CAP,
    MIB,
    Outcome,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    python,
    reached,
    started,
)


@check("share-torch", timeout=120, needs=("torch",))
def share_torch(outcome: Outcome) -> None:
    """Two PyTorch processes of one group fill until refused: their sum stays under the limit."""
    with judged(outcome, CAP) as judge:
        programs = [capped(python("torch_agent.py"), name="shared") for _ in range(2)]
        for program in programs:
            program.reply(90)
        for program in programs:
            program.say("kernels")
        for program in programs:
            outcome.expect("checksum" in program.reply(), "the kernels failed")
        # Both processes fill at the same time, and race for the last bytes.
        for seed, program in enumerate(programs):
            program.say("fill", seed=seed + 3)
        found = [program.reply(120) for program in programs]
        outcome.figures["fills"] = found
        for answer in found:
            outcome.expect(
                answer.get("is_torch_oom"), f"{answer.get('exception')}: {answer.get('text')}"
            )
        compare_at_rest(outcome, judge, "both full")
        reached(outcome, judge.read(), CAP)
        # The other process can get the memory that one gives back.
        programs[0].ask("free")
        second = programs[1].ask("fill", 60, seed=8)
        outcome.expect(
            second.get("bytes", 0) >= found[0].get("bytes", 0) - 128 * MIB,
            f"the other got only {mib(second.get('bytes', 0))}",
        )
        for program in programs:
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    outcome.key.append(" + ".join(mib(answer.get("bytes", 0)) for answer in found))


@check("share-race", timeout=90)
def share_race(outcome: Outcome) -> None:
    """Four processes of one group allocate and free at the edge at full speed."""
    with judged(outcome, CAP) as judge:
        programs = [capped(python("driver.py"), name="race") for _ in range(4)]
        for program in programs:
            started(outcome, program)
        for seed, program in enumerate(programs):
            program.say("churn", seed=seed + 1, rounds=4000, largest=96 * MIB)
        found = [program.reply(75) for program in programs]
        outcome.figures["churn"] = found
        for answer in found:
            outcome.expect(
                answer.get("status") == 0 and answer.get("refused", 0) > 0, f"churn: {answer}"
            )
        compare_at_rest(outcome, judge, "after the race")
        for program in programs:
            outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
        seen = judge.read()
    granted, refused = (sum(answer.get(k, 0) for answer in found) for k in ("granted", "refused"))
    outcome.key.append(f"{granted} granted, {refused} refused, peak {mib(seen['sum_peak'])}")
