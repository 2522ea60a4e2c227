"""CUDA C++ programs, built here, with the static and with the shared runtime."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from harness import (
    CAP,
    HERE,
    MIB,
    Outcome,
    Skip,
    capped,
    check,
    compare_at_rest,
    judged,
    mib,
    reached,
)

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
MANAGED = 512 * MIB


def compiler() -> str:
    """Returns the path of nvcc; skips the check without it."""
    found = shutil.which("nvcc") or next(
        (str(p) for p in [Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None
    )
    if not found:
        raise Skip("no nvcc")
    return found


def one(outcome: Outcome, command: list[str], way: str, label: str) -> None:
    """Tests one program with one way to allocate."""
    managed = way == "managed"
    # NVML does not show managed memory, so NVML's figure must stay below the limit by the managed
    # bytes. A limit of 768 MiB leaves less than 512 MiB beside a context, so managed memory alone
    # must be refused.
    limit, cap = ("768M", 768 * MIB) if managed else ("4G", CAP)
    with judged(outcome, cap, label) as judge:
        program = capped([*command, way], limit)
        found = program.reply(60)
        outcome.figures[label] = found
        outcome.expect(
            found.get("refusal") == OUT_OF_MEMORY,
            f"{label}: the refusal was {found.get('refusal')}: {found}",
        )
        outcome.expect(
            found.get("work") == 0 and found.get("wrong") == 0,
            f"{label}: kernels went wrong: {found}",
        )
        outcome.expect(
            found.get("total") == found.get("properties_total") == cap,
            f"{label}: total {found.get('total')}",
        )
        seen = judge.settled()
        if managed:
            sum_with_managed = seen["sum_peak"] + found.get("got", 0)
            outcome.expect(
                sum_with_managed <= cap + 2 * MIB,
                f"{label}: NVML plus managed is {mib(sum_with_managed)}",
            )
            outcome.key.append(f"{label} {mib(found.get('got', 0))}")
        else:
            compare_at_rest(outcome, judge, label)
            reached(outcome, judge.read(), cap)
        end = program.ask("go")
        outcome.expect(
            end.get("freed") == 0 and (managed or end.get("again") == 0),
            f"{label}: after freeing {end}",
        )
        status = program.finish()
        outcome.expect(status == 0, f"{label}: ended with {status}: {program.tail()}")


def build(
    nvcc: str, source: str, runtime: str, folder: str, *options: str
) -> tuple[Path, subprocess.Popen]:
    """Starts the compiler; the program will be at the returned path."""
    target = Path(folder) / "-".join(
        [Path(source).stem, runtime, *(option.strip("-") for option in options)]
    )
    command = [nvcc, "-O1", f"-cudart={runtime}", *options, str(HERE / source), "-o", str(target)]
    return target, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def built(outcome: Outcome, compiling: subprocess.Popen, what: str) -> bool:
    errors = compiling.communicate(timeout=90)[1]
    return outcome.expect(compiling.returncode == 0, f"nvcc failed ({what}): {errors[-300:]}")


@check("cuda-c", timeout=120)
def cuda_c(outcome: Outcome) -> None:
    """cudaMalloc, MallocAsync, MallocPitch, MallocManaged by the static and shared runtimes."""
    nvcc = compiler()
    with tempfile.TemporaryDirectory() as folder:
        builds = {
            runtime: build(nvcc, "fill.cu", runtime, folder) for runtime in ("static", "shared")
        }
        for runtime, (target, compiling) in builds.items():
            if not built(outcome, compiling, runtime):
                continue
            for way in (
                ("malloc", "async", "pitch", "managed")
                if runtime == "static"
                else ("malloc", "async")
            ):
                one(outcome, [str(target)], way, f"{runtime}_{way}")


WAYS = (
    "array",
    "array-3d",
    "layered",
    "mipmapped",
    "graph",
    "captured",
    "stack",
    "local",
    "heap",
    "variable",
)
STAYS = {"local": CAP, "heap": CAP, "variable": CAP, "graph": 8 * MIB, "captured": 8 * MIB}
"""Bytes that the driver keeps after everything was freed, by way; 2 MiB for the others."""


@check("cuda-c-ways", timeout=150)
def cuda_c_ways(outcome: Outcome) -> None:
    """Arrays, graphs, stacks, local memory, the heap and large variables by the runtime."""
    nvcc = compiler()
    with tempfile.TemporaryDirectory() as folder:
        target, compiling = build(nvcc, "ways.cu", "static", folder)
        if not built(outcome, compiling, "ways"):
            return
        for way in WAYS:
            with judged(outcome, CAP, way) as judge:
                program = capped([str(target), way])
                found = program.reply(60)
                outcome.figures[way] = found
                outcome.expect(
                    found.get("refusal") == OUT_OF_MEMORY,
                    f"{way}: the refusal was {found.get('refusal')}: {found}",
                )
                compare_at_rest(outcome, judge, way)
                # The lines are read only now because another thread reads standard error.
                outcome.expect(program.refusals(), f"{way}: no refusal line on stderr")
                full = judge.read()["sum_last"]
                program.say("go")
                outcome.expect(program.reply(60).get("freed") == 0, f"{way}: giving back failed")
                left = judge.settled()["sum_last"]
                outcome.expect(
                    left <= max(1100 * MIB, STAYS.get(way, 0)),
                    f"{way}: {mib(left)} of {mib(full)} are left",
                )
                compare_at_rest(outcome, judge, f"{way} freed")
                program.say("end")
                status = program.finish()
                outcome.expect(status == 0, f"{way}: ended with {status}: {program.tail()}")
                outcome.key.append(f"{way} {found.get('granted')}")


MODES = ("none", "default", "size", "speed", "balance")


@check("cuda-c-compressed", timeout=150)
def cuda_c_compressed(outcome: Outcome) -> None:
    """Large variables in compressed code are refused before the load, or charged exactly."""
    nvcc = compiler()
    if (
        "--compress-mode" not in subprocess.run(
            [nvcc, "--help"], capture_output=True, text=True, timeout=30
        ).stdout
    ):
        raise Skip("nvcc has no --compress-mode")
    kinds = {"code": ["-arch=native"], "text": ["-gencode=arch=compute_75,code=compute_75"]}
    with tempfile.TemporaryDirectory() as folder:
        builds = {}
        for mode in MODES:
            # Without this option nvcc does not compress small machine code.
            everything = [] if mode == "none" else ["-Xfatbin=-compress-all"]
            for kind, target in kinds.items():
                options = [*target, f"--compress-mode={mode}", *everything]
                builds[f"{kind} {mode}"] = build(nvcc, "variables.cu", "static", folder, *options)
        for label, (target, compiling) in builds.items():
            if not built(outcome, compiling, label):
                continue
            with judged(outcome, CAP, label) as judge:
                program = capped([str(target)])
                found = program.reply(60)
                outcome.expect(
                    found.get("launch") == OUT_OF_MEMORY, f"{label}: not refused: {found}"
                )
                outcome.expect(
                    judge.settled()["sum_last"] < CAP - 256 * MIB,
                    f"{label}: the variables are there after the refusal",
                )
                compare_at_rest(outcome, judge, f"{label} refused")
                outcome.expect(program.refusals(), f"{label}: no refusal line on stderr")
                program.say("go")
                found = program.reply(60)
                outcome.expect(
                    found == {"launch": 0, "found": 4711}, f"{label}: when there is room: {found}"
                )
                outcome.expect(
                    judge.settled()["sum_last"] >= 1024 * MIB, f"{label}: the variables are nowhere"
                )
                compare_at_rest(outcome, judge, label)
                program.say("end")
                status = program.finish()
                outcome.expect(status == 0, f"{label}: ended with {status}: {program.tail()}")
        outcome.key.append(f"{len(builds)} builds")
