"""The view: every public way to ask for the size of the memory answers for the group."""

from __future__ import annotations

import shutil

from harness import CAP, GIB, Outcome, Skip, bare, capped, check, judged, mib, preloaded, python


def agent_info(outcome: Outcome, script: str, label: str, start=capped, **variables: str) -> dict:
    """Returns what a framework sees under the limit, and checks total and free memory if they are
    reported.
    """
    program = start(python(script), **variables)
    program.reply(90)
    program.ask("kernels", 120)
    seen = program.ask("info")
    outcome.expect(program.finish() == 0, f"{label}: the program ended badly: {program.tail()}")
    outcome.figures[label] = seen
    if "total" in seen:
        outcome.expect(seen["total"] == CAP, f"{label}: total is {seen['total']}, not {CAP}")
        outcome.expect(0 < seen["free"] <= seen["total"], f"{label}: free is {seen['free']}")
    outcome.expect("error" not in seen, f"{label}: {seen}")
    return seen


@check("view-torch", timeout=90, needs=("torch",))
def view_torch(outcome: Outcome) -> None:
    """PyTorch sees a 4 GiB GPU: mem_get_info and device properties."""
    with judged(outcome, CAP):
        seen = agent_info(outcome, "torch_agent.py", "torch")
    outcome.expect(
        seen.get("total_memory") == CAP, f"get_device_properties says {seen.get('total_memory')}"
    )
    outcome.key.append(f"total {seen.get('total', 0) / GIB:g} GiB, free {mib(seen.get('free', 0))}")


@check("view-preload", timeout=90, needs=("torch",))
def view_preload(outcome: Outcome) -> None:
    """The same with LD_PRELOAD and GPULIMIT_MAX alone, without the controller."""
    with judged(outcome, CAP):
        seen = agent_info(outcome, "torch_agent.py", "torch", start=preloaded)
    outcome.expect(
        seen.get("total_memory") == CAP, f"get_device_properties says {seen.get('total_memory')}"
    )
    outcome.key.append(f"total {seen.get('total', 0) / GIB:g} GiB")


@check("view-jax", timeout=120, needs=("jax",), lane="jax")
def view_jax(outcome: Outcome) -> None:
    """JAX sizes its pool from the cap: bytes_limit is 75 % of 4 GiB."""
    with judged(outcome, CAP):
        seen = agent_info(outcome, "jax_agent.py", "jax")
    outcome.expect(seen.get("platform") in ("gpu", "cuda"), f"JAX runs on {seen.get('platform')}")
    limit = seen.get("stats", {}).get("bytes_limit", 0)
    outcome.expect(abs(limit - 0.75 * CAP) <= 0.01 * CAP, f"bytes_limit is {mib(limit)}")
    outcome.key.append(f"bytes_limit {mib(limit)}")


@check("view-cupy", needs=("cupy",))
def view_cupy(outcome: Outcome) -> None:
    """CuPy's mem_info says 4 GiB."""
    with judged(outcome, CAP):
        seen = agent_info(outcome, "cupy_agent.py", "cupy")
    outcome.key.append(f"free {mib(seen.get('free', 0))}")


@check("view-numba", needs=("numba",))
def view_numba(outcome: Outcome) -> None:
    """Numba's get_memory_info says 4 GiB."""
    with judged(outcome, CAP):
        seen = agent_info(outcome, "numba_agent.py", "numba")
    outcome.key.append(f"free {mib(seen.get('free', 0))}")


@check("view-nvidia-smi")
def view_nvidia_smi(outcome: Outcome) -> None:
    """nvidia-smi under the preload prints 4096 MiB for every GPU."""
    if not shutil.which("nvidia-smi"):
        raise Skip("no nvidia-smi")
    query = [
        "nvidia-smi",
        "--query-gpu=memory.total,memory.used,memory.free",
        "--format=csv,noheader,nounits",
    ]
    answers = {}
    for label, start in (("run", capped), ("preload", preloaded), ("bare", bare)):
        program = start(query)
        status = program.finish()
        outcome.expect(status == 0, f"{label}: ended with {status}: {program.tail()}")
        answers[label] = program.lines
    outcome.figures["answers"] = answers
    for label in ("run", "preload"):
        # nvidia-smi shows all GPUs, whichever CUDA may use.
        outcome.expect(
            len(answers[label]) == len(answers["bare"]) > 0,
            f"{label}: {len(answers[label])} lines, bare {len(answers['bare'])}",
        )
        for line in answers[label]:
            total, used, free = (line.split(", ") + ["", "", ""])[:3]
            outcome.expect(total == "4096", f"{label}: memory.total is {total!r}")
            outcome.expect(
                used.isdigit() and free.isdigit() and int(used) + int(free) <= 4096,
                f"{label}: used {used}, free {free}",
            )
    outcome.key.append(f"{answers['run'][:1]}, bare {answers['bare'][:1]}")
