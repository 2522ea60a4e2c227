"""The cost of calls compared with the bare driver, in the same run, in turns. A slow call is
printed as SLOW and never fails a check.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from harness import (
    Outcome,
    bare,
    binary,
    check,
    library,
    missing,
    plain_environment,
    preloaded,
    python,
)
from ratios import compared, ratios, take_turns

AIMS = {
    "new_block_pair": 1.02,
    "in_block_pair_1": 1.05,
    "in_block_pair_50000": 1.05,
    "async_pair": 1.20,
    "mem_get_info": None,
    "launch": 1.00,
    "event_query": 1.05,
    "graph_replay_100": 1.00,
}
THREADS = {"event_query_1": 1.05, "event_query_2": None, "event_query_16": None}
"""Queries in that many threads at the same time. With 16 no more ns should be added than with 1."""
NOISE = 0.02
"""A ratio is slow above its aim plus this tolerance plus the difference between two bare processes.
"""
SETS, TURNS = 3, 67
"""The number of sets of processes, and of turns in each set. A process keeps its place in memory
and what it got from the driver, so a single set says little.
"""
ROUNDS = 16
LIMIT = "40G"
WAYS = ("bare", "again", "preloaded")


@check("speed-calls", timeout=150, lane="alone")
def speed_calls(outcome: Outcome) -> None:
    """Nanoseconds per call or pair, bare and preloaded; the median of the turns' ratios."""
    compare(outcome, "calls", AIMS)


@check("speed-threads", timeout=150, lane="alone")
def speed_threads(outcome: Outcome) -> None:
    """The same for queries in several threads, which run on all processors."""
    compare(outcome, "threads", THREADS)


def compare(outcome: Outcome, mode: str, aims: dict[str, float | None]) -> None:
    """Measures the calls of a mode of the program `bench`."""
    sets = [one_set(outcome, mode, list(aims)) for _ in range(SETS)]
    for name, aim in aims.items():
        times = {way: [ns for one in sets for ns in one[name][way]] for way in WAYS}
        of_sets = {
            way: [ratios(one[name][way], one[name]["bare"])[0] for one in sets] for way in WAYS
        }
        found = compared(times["preloaded"], times["bare"], times["again"])
        added = statistics.median(
            with_us - without
            for with_us, without in zip(times["preloaded"], times["bare"], strict=True)
        )
        noise = max(abs(each - 1) for each in [found["bare_ratio"], *of_sets["again"]])
        slow = aim is not None and found["ratio"] > aim + NOISE + noise
        outcome.figures[name] = {
            "ns": {way: round(statistics.median(all_of_it), 1) for way, all_of_it in times.items()},
            "added_ns": round(added, 1),
            **found,
            "sets": of_sets["preloaded"],
            "bare_sets": of_sets["again"],
            "aim": aim,
            "slow": slow,
        }
        outcome.key.append(
            f"{name} {found['ratio']:.3f} (bare {found['bare_ratio']:.3f}, {added:+.0f} ns)"
            f"{' SLOW' if slow else ''}"
        )


def one_set(outcome: Outcome, mode: str, names: list[str]) -> dict[str, dict[str, list[float]]]:
    """Returns nanoseconds by call, program and turn, of one set of programs."""
    command = [str(binary("bench")), mode]
    # All programs run on one processor, since another one may be slower, or further from the GPU.
    with on_one_processor() if mode == "calls" else nullcontext():
        programs = dict(
            zip(WAYS, (bare(command), bare(command), preloaded(command, LIMIT)), strict=True)
        )
    seen = {}
    for name in names:

        def batch(way: str, name: str = name) -> float:
            answer = programs[way].ask("batch")
            outcome.expect(answer["name"] == name, f"asked for {name}, answered {answer}")
            return answer["ns"]

        seen[name] = take_turns(WAYS, TURNS, batch)
        for program in programs.values():
            program.say("next")
    for way, program in programs.items():
        code = program.finish()
        outcome.expect(code == 0, f"{way} ended with {code}: {program.tail()}")
    return seen


@contextmanager
def on_one_processor() -> Iterator[None]:
    """Makes programs started in this block run on the last of this process's processors."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(ours)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)


@check("speed-start", timeout=120, lane="alone")
def speed_start(outcome: Outcome) -> None:
    """Start-up: a whole process that makes a context and ends, in milliseconds."""
    command = [str(binary("bench")), "start"]

    def timed(prefix: list[str], variables: dict[str, str]) -> float:
        begin = time.perf_counter()
        # The call waits in the kernel: with a time limit it would poll every 50 ms. The check has a
        # time limit of its own.
        ended = subprocess.run(
            [*prefix, *command],
            env={**plain_environment(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        took = (time.perf_counter() - begin) * 1e3
        outcome.expect(
            ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-300:]!r}"
        )
        return took

    ways = {
        "bare": lambda: timed([], {}),
        "again": lambda: timed([], {}),
        "preloaded": lambda: timed([], {"LD_PRELOAD": str(library()), "GPULIMIT_MAX": LIMIT}),
        "run": lambda: timed([str(binary("gpulimit")), "run", "--max", LIMIT, "--"], {}),
    }
    seen = take_turns(ways, ROUNDS, lambda way: ways[way]())
    median = {way: statistics.median(times) for way, times in seen.items()}
    ratio, null, by_run = (
        ratios(seen[way], seen["bare"])[0] for way in ("preloaded", "again", "run")
    )
    outcome.figures |= {
        "ms": {k: round(v, 2) for k, v in median.items()},
        "ratio": ratio,
        "bare_ratio": null,
        "by_run": by_run,
        "aim": 1.05,
        "rounds": seen,
    }
    slow = " SLOW" if ratio > 1.05 + NOISE + abs(null - 1) else ""
    outcome.key.append(
        f"{ratio:.3f}{slow} (bare {null:.3f}, {median['bare']:.0f} ms), by run {by_run:.3f}"
    )


FIRST = {"cupy": "cupy", "torch": "torch", "cudnn": "torch", "jax": "jax"}
"""The programs of work/first.py, and the Python module that each needs."""
OWN = 15.0
"""The most processor time in ms that the library's own code should take in such a program."""


@check("speed-frameworks", timeout=280, lane="alone")
def speed_frameworks(outcome: Outcome) -> None:
    """Start-up of frameworks: processor time to the first kernel, and the library's own part."""
    for name, module in FIRST.items():
        if missing((module,)):
            outcome.key.append(f"{name}: no {module}")
            continue
        one_framework(outcome, name)


def one_framework(outcome: Outcome, name: str, turns: int = 5) -> None:
    """Compares a framework's start, bare, bare again and limited, in turns; then samples it."""
    command = python("first.py", name)
    hooked = {"LD_PRELOAD": str(library()), "GPULIMIT_MAX": LIMIT}

    def spent(variables: dict[str, str]) -> float:
        """Returns the processor time of one run in seconds, that of its children included."""
        before = os.times()
        ended = subprocess.run(
            command,
            env={**plain_environment(), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        after = os.times()
        outcome.expect(
            ended.returncode == 0,
            f"{name} ended with {ended.returncode}: {ended.stderr[-300:]!r}",
        )
        return (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )

    variables = {"bare": {}, "again": {}, "preloaded": hooked}
    times = take_turns(variables, turns, lambda way: spent(variables[way]))
    own = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            samples = Path(folder) / "samples"
            both = f"{library()}:{binary('sampler.so')}"
            seconds = spent({**hooked, "LD_PRELOAD": both, "SAMPLES": str(samples)})
            ours, everything = map(int, samples.read_text().split())
            outcome.expect(everything > 10, f"{name} was not sampled: {everything} samples")
            own.append(round(seconds * 1e3 * ours / everything, 1))
    mean = statistics.mean(own)
    found = compared(times["preloaded"], times["bare"], times["again"])
    outcome.figures[name] = {
        "s": {way: round(statistics.median(all_of_it), 3) for way, all_of_it in times.items()},
        **found,
        "own_ms": own,
        "aim_ms": OWN,
    }
    slow = " SLOW" if mean > OWN else ""
    outcome.key.append(
        f"{name} {found['ratio']:.3f} (bare {found['bare_ratio']:.3f}), own {mean:.0f} ms{slow}"
    )
