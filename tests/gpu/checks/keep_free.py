"""Jobs that leave memory of the GPU free beside a program without a limit."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from harness import (
    GIB,
    MIB,
    Outcome,
    Program,
    bare,
    binary,
    check,
    gpu_index,
    mib,
    plain_environment,
    python,
    started,
)
from judge import Nvml

OUT_OF_MEMORY = 2
KEEP = 8 * GIB
STEP = 256 * MIB
RACERS = 8
CALLS = 400


def job(outcome: Outcome, *options: str) -> Program:
    """Starts a program of plain driver calls under `gpulimit run OPTIONS`, with a context."""
    front = [str(binary("gpulimit")), "run", *options, "--"]
    program = Program(front + python("driver.py"), plain_environment())
    started(outcome, program)
    return program


def cost(program: Program) -> float:
    """Returns the microseconds of a call that takes new memory and its free, seen by Python."""
    begun = time.monotonic()
    program.ask("alloc", size=4 * MIB, times=CALLS)
    program.ask("free")
    return (time.monotonic() - begun) / CALLS * 1e6


@check("keep-free-stranger", timeout=120, lane="alone")
def stranger(outcome: Outcome) -> None:
    """A job leaves 8 GiB free beside a stranger that grows, and goes on when it shrinks."""
    gpu = Nvml(gpu_index())
    other = bare(python("driver.py"))
    started(outcome, other)
    program = job(outcome, "--keep-free", str(KEEP))
    free = gpu.free()
    outcome.expect(free > 2 * KEEP, f"only {mib(free)} free")
    size = free - 2 * KEEP
    outcome.expect(other.ask("alloc", size=size).get("status") == 0, "the stranger is limited")
    filled = program.ask("alloc", size=STEP, times=1000)
    free = gpu.free()
    outcome.figures["left"] = free
    outcome.key.append(f"left {mib(free)}")
    outcome.expect(filled.get("status") == OUT_OF_MEMORY, f"never refused: {filled}")
    outcome.expect(KEEP <= free < KEEP + STEP + 64 * MIB, f"{mib(free)} left after {filled}")
    outcome.expect(other.ask("alloc", size=4 * GIB).get("status") == 0, "it cannot grow")
    refused = program.ask("alloc", size=4 * MIB)
    outcome.expect(refused.get("status") == OUT_OF_MEMORY, f"4 MiB beside it: {refused}")
    lines = program.refusals()
    outcome.figures["line"] = lines[-1:]
    outcome.expect(lines and "keeps 8.0 GiB free" in lines[-1], f"it says {lines[-1:]}")
    other.ask("free")
    again = program.ask("alloc", size=STEP, times=4)
    outcome.expect(again.get("status") == 0, f"no memory once the stranger has shrunk: {again}")
    for one in (program, other):
        outcome.expect(one.finish() == 0, f"ended badly: {one.tail()}")


@check("keep-free-racers", timeout=120, lane="alone")
def racers(outcome: Outcome) -> None:
    """Jobs of different groups that ask at once keep no more than fits."""
    gpu = Nvml(gpu_index())
    jobs = [job(outcome, "--keep-free", str(KEEP)) for _ in range(RACERS)]
    part = (gpu.free() - KEEP) // (RACERS // 2)
    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(lambda one: one.ask("alloc", size=part), jobs))
    granted = sum(answer.get("status") == 0 for answer in answers)
    free = gpu.free()
    outcome.figures |= {"granted": granted, "left": free}
    outcome.key.append(f"{granted} of {RACERS} granted, left {mib(free)}")
    outcome.expect(free >= KEEP, f"{mib(free)} left by {answers}")
    outcome.expect(granted > 0, f"nobody got {mib(part)}: {answers}")
    for one in jobs:
        outcome.expect(one.finish() == 0, f"ended badly: {one.tail()}")


@check("keep-free-cost", timeout=60, lane="alone")
def costs(outcome: Outcome) -> None:
    """What the two looks at the GPU add to a call that takes new memory (aim: 10 µs)."""
    pairs = {"--max": ("--max", "16G"), "--keep-free": ("--keep-free", "1G")}
    found: dict[str, float] = {}
    for name, options in pairs.items():
        program = job(outcome, *options)
        cost(program)
        found[name] = min(cost(program) for _ in range(5))
        outcome.expect(program.finish() == 0, f"ended badly: {program.tail()}")
    added = found["--keep-free"] - found["--max"]
    outcome.figures |= {f"{name} µs": value for name, value in found.items()} | {"added µs": added}
    outcome.key.append(f"{added:.1f} µs added to {found['--max']:.1f}")
