"""A training run that fits is not disturbed: the same losses bit for bit, and about the same time."""

from __future__ import annotations

from harness import CAP, Outcome, bare, capped, check, judged, mib, python


@check("training", timeout=150, needs=("torch",), lane="alone")
def training(outcome: Outcome) -> None:
    """50 steps of training give bit-identical losses with and without us."""
    command, found = python("torch_train.py"), {}
    found["bare"] = one(outcome, bare(command))
    with judged(outcome, CAP):
        found["capped"] = one(outcome, capped(command))
    losses = [found[label].get("losses", []) for label in ("bare", "capped")]
    if not outcome.expect(len(losses[0]) == 50 and losses[0] == losses[1], f"the losses differ: {first_difference(*losses)}"):
        again = one(outcome, bare(command)).get("losses", [])
        outcome.expect(losses[0] == again, f"without us they differ too: {first_difference(losses[0], again)}")
    # One run says little about time: machines drift by several percent. In turns, and the best of each.
    rounds = {label: [found[label].get("step_ms", 0.0)] for label in ("bare", "capped")}
    for _ in range(2):
        rounds["capped"].append(one(outcome, capped(command)).get("step_ms", 0.0))
        rounds["bare"].append(one(outcome, bare(command)).get("step_ms", 0.0))
    times = [min(rounds[label]) for label in ("bare", "capped")]
    ratio = times[1] / times[0] if times[0] else 0.0
    outcome.figures |= {"losses": losses[0][-1:], "step_ms": times, "rounds": rounds, "ratio": round(ratio, 4), "reserved": found["capped"].get("reserved")}
    outcome.key.append(f"{len(losses[0])} losses, last {losses[0][-1]}, step {times[1]:.2f} ms, ratio {ratio:.3f}, reserved {mib(found['capped'].get('reserved', 0))}")


def one(outcome: Outcome, program) -> dict:
    """Run it to its end."""
    report = program.reply(100)
    status = program.finish()
    outcome.expect(status == 0, f"ended with {status}: {program.tail()}")
    return report


def first_difference(left: list[str], right: list[str]) -> str:
    """Where two lists part."""
    for step, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return f"step {step}: {a} and {b}"
    return f"{len(left)} and {len(right)} steps"
