"""The examples of the repository, under a limit."""

from __future__ import annotations

import re
import sys

from harness import CAP, GIB, HERE, Outcome, capped, check, judged


def example(outcome: Outcome, name: str, *expected: str) -> None:
    """Runs an example to its end, and searches its output for these patterns, of which the first is
    about the memory that it sees.
    """
    with judged(outcome, CAP, name):
        program = capped([sys.executable, str(HERE / "examples" / name)])
        status = program.finish(120)
        said = "\n".join(program.lines)
        outcome.expect(status == 0, f"{name} ended with {status}: {program.tail()}")
        for pattern in expected:
            outcome.expect(re.search(pattern, said), f"{name}: no {pattern!r} in {said!r}")
    outcome.key.append(said.strip().splitlines()[-1] if said.strip() else "nothing")


@check("example-pytorch", timeout=150, needs=("torch",))
def pytorch(outcome: Outcome) -> None:
    """examples/pytorch_batches.py finds a batch that fits, and trains with it."""
    example(
        outcome,
        "pytorch_batches.py",
        rf"memory: {CAP / GIB:.1f} GiB",
        r"batch \d+: loss \d+\.\d+ after 20 steps",
    )


@check("example-jax", timeout=150, needs=("jax",), lane="jax")
def jax(outcome: Outcome) -> None:
    """examples/jax_fraction.py has a pool of the limit's size, and survives a refusal."""
    example(
        outcome,
        "jax_fraction.py",
        r"memory: the pool has [23]\.\d GiB",
        r"refused: .*RESOURCE_EXHAUSTED",
        r"and on: 1048576",
    )


@check("example-cupy", timeout=120, needs=("cupy",))
def cupy(outcome: Outcome) -> None:
    """examples/cupy_chunks.py sums in chunks what does not fit at once."""
    example(
        outcome,
        "cupy_chunks.py",
        rf"memory: {CAP / GIB:.1f} GiB",
        r"all at once: Out of memory",
        r"in chunks: .* right",
    )
