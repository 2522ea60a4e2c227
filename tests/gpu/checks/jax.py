"""JAX's allocators, filled until RESOURCE_EXHAUSTED."""

from __future__ import annotations

from harness import (
    CAP,
    SLACK,
    Outcome,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    python,
    reached,
)


def fill(outcome: Outcome, to_the_cap: bool, **variables: str) -> None:
    """Fills, frees and allocates again. With `to_the_cap`, the allocator has no limit of its own
    below the group's.
    """
    with judged(outcome, CAP) as judge:
        # XLA's command buffers and autotuning stay enabled, as users have them.
        program = capped(python("jax_agent.py"), **variables)
        program.reply(90)
        work = program.ask("kernels", 120)
        if "cudnn status: 5003" in work.get("text", ""):
            # On its first run on a machine, XLA may synchronise in one thread while another one
            # captures; this happens as often without gpulimit (see the records).
            outcome.figures["first_kernels"] = work
            work = program.ask("kernels", 120)
        outcome.expect(
            "checksum" in work,
            f"the kernels failed: {work}; {program.refusals()}; {program.tail()}",
        )
        limit = program.ask("info").get("stats", {}).get("bytes_limit", 0)
        found = program.ask("fill", 120)
        outcome.figures["fill"] = found | {"bytes_limit": limit}
        outcome.expect(
            found.get("is_jax_error") and "RESOURCE_EXHAUSTED" in found.get("text", ""),
            f"not JAX's RESOURCE_EXHAUSTED but {found.get('exception')}: {found.get('text')}",
        )
        compare_at_rest(outcome, judge, "full")
        if to_the_cap:
            reached(outcome, judge.read(), CAP)
        else:
            # The pool also holds what the kernels keep, so the check uses the pool's own figure,
            # not the sum of the arrays.
            stats = program.ask("info").get("stats", {})
            outcome.figures["full"] = stats
            short = limit - stats.get("peak_bytes_in_use", 0)
            outcome.expect(short <= SLACK, f"JAX used {mib(short)} less than its bytes_limit")
            outcome.key.append(f"peak {mib(judge.read()['sum_peak'])}")
        program.ask("free")
        again = program.ask("alloc", size=256 << 20)
        outcome.expect("error" not in again, f"no 256 MiB after freeing: {again}")
        outcome.key.append(f"fill {mib(found.get('bytes', 0))}, {found.get('exception', '-')}")
        status = program.finish()
        outcome.expect(status == 0, f"ended with {status}: {program.tail()}")


@check("jax-preallocate", timeout=150, needs=("jax",), lane="jax")
def jax_preallocate(outcome: Outcome) -> None:
    """JAX with its default preallocation of 75 %."""
    fill(outcome, to_the_cap=False)


@check("jax-growing", timeout=150, needs=("jax",), lane="jax")
def jax_growing(outcome: Outcome) -> None:
    """JAX growing on demand until the limit refuses."""
    # By default JAX stops at 75 %; with nearly all memory as its share, the group's limit refuses.
    fill(
        outcome,
        to_the_cap=True,
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
        XLA_PYTHON_CLIENT_MEM_FRACTION="0.99",
    )


@check("jax-platform", timeout=150, needs=("jax",), lane="jax")
def jax_platform(outcome: Outcome) -> None:
    """JAX with the platform allocator: one driver call per array."""
    fill(
        outcome,
        to_the_cap=True,
        XLA_PYTHON_CLIENT_ALLOCATOR="platform",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
