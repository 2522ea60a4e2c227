"""A training run that fits is not disturbed: the same losses bit for bit, and the same time."""

from __future__ import annotations

import statistics

from harness import CAP, Outcome, Program, bare, capped, check, judged, mib, python
from ratios import orders, ratios

TURNS = 60


@check("training", timeout=150, needs=("torch",), lane="alone")
def training(outcome: Outcome) -> None:
    """50 steps of training give bit-identical losses with and without us, and a step takes as long, in turns of some steps."""
    command = python("torch_train.py")
    with judged(outcome, CAP):
        programs = {"capped": capped(command)}
        found = {"capped": programs["capped"].reply(100)}
    # The second bare one tells what two processes differ by that are the same.
    for way in ("bare", "again"):
        programs[way] = bare(command)
        found[way] = programs[way].reply(100)
    losses = {way: report["losses"] for way, report in found.items()}
    outcome.expect(losses["bare"] == losses["again"], f"without us they differ: {first_difference(losses['bare'], losses['again'])}")
    outcome.expect(losses["bare"] == losses["capped"], f"the losses differ: {first_difference(losses['bare'], losses['capped'])}")
    times = in_turns(programs)
    for way, program in programs.items():
        status = program.finish()
        outcome.expect(status == 0, f"{way} ended with {status}: {program.tail()}")
    ratio, quartiles = ratios(times["capped"], times["bare"])
    null, null_quartiles = ratios(times["again"], times["bare"])
    step = {way: round(statistics.median(all_of_it), 3) for way, all_of_it in times.items()}
    reserved = found["capped"]["reserved"]
    outcome.figures |= {"losses": losses["capped"][-1:], "step_ms": step, "reserved": reserved}
    outcome.figures |= {"ratio": ratio, "quartiles": quartiles, "bare_ratio": null, "bare_quartiles": null_quartiles}
    outcome.key.append(
        f"{len(losses['capped'])} losses, last {losses['capped'][-1]}, step {step['capped']:.2f} ms, ratio {ratio:.3f} (bare {null:.3f}), reserved {mib(reserved)}"
    )


def in_turns(programs: dict[str, Program]) -> dict[str, list[float]]:
    """Milliseconds of a step of each, turn by turn. The first turn warms up."""
    times: dict[str, list[float]] = {way: [] for way in programs}
    for turn, order in orders(programs, TURNS + 1):
        for way in order:
            answer = programs[way].ask("turn")
            if turn > 0:
                times[way].append(answer["step_ms"])
    return times


def first_difference(left: list[str], right: list[str]) -> str:
    """Where two lists part."""
    for step, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return f"step {step}: {a} and {b}"
    return f"{len(left)} and {len(right)} steps"
