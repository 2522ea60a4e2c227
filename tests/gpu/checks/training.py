"""A training run that fits is not disturbed: it has the same losses bit for bit, and the same
speed.
"""

from __future__ import annotations

import statistics

from harness import CAP, Outcome, bare, capped, check, judged, mib, python
from ratios import compared, take_turns

TURNS = 60


@check("training", timeout=150, needs=("torch",), lane="alone")
def training(outcome: Outcome) -> None:
    """50 training steps give bit-identical losses with and without gpulimit, at the same speed."""
    command = python("torch_train.py")
    with judged(outcome, CAP):
        programs = {"capped": capped(command)}
        found = {"capped": programs["capped"].reply(100)}
    # The second bare program shows how much two equal programs differ.
    for way in ("bare", "again"):
        programs[way] = bare(command)
        found[way] = programs[way].reply(100)
    losses = {way: report["losses"] for way, report in found.items()}
    outcome.expect(
        losses["bare"] == losses["again"],
        f"without gpulimit they differ: {first_difference(losses['bare'], losses['again'])}",
    )
    outcome.expect(
        losses["bare"] == losses["capped"],
        f"the losses differ: {first_difference(losses['bare'], losses['capped'])}",
    )
    times = take_turns(programs, TURNS, lambda way: programs[way].ask("turn")["step_ms"])
    for way, program in programs.items():
        status = program.finish()
        outcome.expect(status == 0, f"{way} ended with {status}: {program.tail()}")
    compare = compared(times["capped"], times["bare"], times["again"])
    step = {way: round(statistics.median(all_of_it), 3) for way, all_of_it in times.items()}
    reserved = found["capped"]["reserved"]
    outcome.figures |= {
        "losses": losses["capped"][-1:],
        "step_ms": step,
        "reserved": reserved,
        **compare,
    }
    outcome.key.append(
        f"{len(losses['capped'])} losses, last {losses['capped'][-1]}, step {step['capped']:.2f}"
        f" ms, ratio {compare['ratio']:.3f} (bare {compare['bare_ratio']:.3f}), reserved"
        f" {mib(reserved)}"
    )


def first_difference(left: list[str], right: list[str]) -> str:
    """Describes the first difference of two lists."""
    for step, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return f"step {step}: {a} and {b}"
    return f"{len(left)} and {len(right)} steps"
