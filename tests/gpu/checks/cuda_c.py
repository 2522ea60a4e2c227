"""A CUDA C++ program, built on the spot, with the static and with the shared runtime."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from harness import CAP, HERE, MIB, Outcome, Skip, capped, check, compare_at_rest, judged, mib, reached

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
MANAGED = 512 * MIB


def compiler() -> str:
    """nvcc, or a skip."""
    found = shutil.which("nvcc") or next((str(p) for p in [Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None)
    if not found:
        raise Skip("no nvcc")
    return found


def one(outcome: Outcome, command: list[str], way: str, label: str) -> None:
    """One program, one way of allocating."""
    managed = way == "managed"
    # NVML does not show managed memory, so what it shows must stay below the cap by as much as was taken. The cap of
    # 768 MiB leaves less than 512 MiB beside a context: managed memory alone must be refused.
    limit, cap = ("768M", 768 * MIB) if managed else ("4G", CAP)
    with judged(outcome, cap, label) as judge:
        program = capped([*command, way], limit)
        found = program.reply(60)
        outcome.figures[label] = found
        outcome.expect(found.get("refusal") == OUT_OF_MEMORY, f"{label}: the refusal was {found.get('refusal')}: {found}")
        outcome.expect(found.get("work") == 0 and found.get("wrong") == 0, f"{label}: kernels went wrong: {found}")
        outcome.expect(found.get("total") == found.get("properties_total") == cap, f"{label}: total {found.get('total')}")
        seen = judge.settled()
        if managed:
            sum_with_managed = seen["sum_peak"] + found.get("got", 0)
            outcome.expect(sum_with_managed <= cap + 2 * MIB, f"{label}: NVML plus managed is {mib(sum_with_managed)}")
            outcome.key.append(f"{label} {mib(found.get('got', 0))}")
        else:
            compare_at_rest(outcome, judge, label)
            reached(outcome, judge.read(), cap)
        end = program.ask("go")
        outcome.expect(end.get("freed") == 0 and (managed or end.get("again") == 0), f"{label}: after freeing {end}")
        status = program.finish()
        outcome.expect(status == 0, f"{label}: ended with {status}: {program.tail()}")


@check("cuda-c", timeout=120)
def cuda_c(outcome: Outcome) -> None:
    """cudaMalloc, MallocAsync, MallocPitch, MallocManaged through the static and the shared runtime."""
    nvcc = compiler()
    with tempfile.TemporaryDirectory() as folder:
        builds = {}
        for runtime in ("static", "shared"):
            target = Path(folder) / runtime
            command = [nvcc, "-O1", f"-cudart={runtime}", str(HERE / "fill.cu"), "-o", str(target)]
            builds[runtime] = (target, subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        for runtime, (target, build) in builds.items():
            errors = build.communicate(timeout=90)[1]
            if not outcome.expect(build.returncode == 0, f"nvcc failed ({runtime}): {errors[-300:]}"):
                continue
            for way in ("malloc", "async", "pitch", "managed") if runtime == "static" else ("malloc", "async"):
                one(outcome, [str(target)], way, f"{runtime}_{way}")
