"""What a call costs beside the bare driver, in the same run, in turns. Slow is said, never a failure."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness import Outcome, bare, binary, check, library, plain_environment, preloaded
from ratios import orders, ratios

AIMS = {
    "new_block_pair": 1.02,
    "in_block_pair_1": 1.05,
    "in_block_pair_50000": 1.05,
    "async_pair": 1.20,
    "mem_get_info": None,
    "launch": 1.00,
    "graph_replay_100": 1.00,
}
NOISE = 0.02
"""A ratio is called slow above its aim plus this and what two bare processes differ by."""
SETS, TURNS = 3, 67
"""Of processes, and turns of each set: where a process lies in memory, and what it got from the driver, stays with it, so one set says little."""
ROUNDS = 16
LIMIT = "40G"


@check("speed-calls", timeout=150, lane="alone")
def speed_calls(outcome: Outcome) -> None:
    """Nanoseconds per call or pair, bare and preloaded in turns of milliseconds; the median of the ratios of all turns, beside that of two bare ones."""
    sets = [one_set(outcome) for _ in range(SETS)]
    for name, aim in AIMS.items():
        times = {way: [ns for one in sets for ns in one[name][way]] for way in sets[0][name]}
        ratio, quartiles = ratios(times["preloaded"], times["bare"])
        null, null_quartiles = ratios(times["again"], times["bare"])
        of_sets = [[ratios(one[name][way], one[name]["bare"])[0] for one in sets] for way in ("preloaded", "again")]
        added = statistics.median(with_us - without for with_us, without in zip(times["preloaded"], times["bare"], strict=True))
        noise = max(abs(each - 1) for each in [null, *of_sets[1]])
        slow = aim is not None and ratio > aim + NOISE + noise
        outcome.figures[name] = {
            "ns": {way: round(statistics.median(all_of_it), 1) for way, all_of_it in times.items()}, "added_ns": round(added, 1),
            "ratio": ratio, "quartiles": quartiles, "sets": of_sets[0],
            "bare_ratio": null, "bare_quartiles": null_quartiles, "bare_sets": of_sets[1], "aim": aim, "slow": slow,
        }
        outcome.key.append(f"{name} {ratio:.3f} (bare {null:.3f}){' SLOW' if slow else ''}")


def one_set(outcome: Outcome) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds by call and program, turn by turn, of one set of programs."""
    command = [str(binary("bench")), "calls"]
    # The second bare one tells what two processes differ by that are the same. All on one processor: others may be slower, or further from the GPU.
    with on_one_processor():
        programs = {"bare": bare(command), "again": bare(command), "preloaded": preloaded(command, LIMIT)}
    seen: dict[str, dict[str, list[float]]] = {name: {way: [] for way in programs} for name in AIMS}
    for name in AIMS:
        for turn, order in orders(programs, TURNS + 1):
            for way in order:
                answer = programs[way].ask("batch")
                outcome.expect(answer["name"] == name, f"asked for {name}, answered {answer}")
                # The first turn warms up.
                if turn > 0:
                    seen[name][way].append(answer["ns"])
        for program in programs.values():
            program.say("next")
    for way, program in programs.items():
        code = program.finish()
        outcome.expect(code == 0, f"{way} ended with {code}: {program.tail()}")
    return seen


@contextmanager
def on_one_processor() -> Iterator[None]:
    """What is started meanwhile has the last processor of ours, and stays there."""
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
        # Waits in the kernel: a wait with a time limit would look every 50 ms. The check has a limit of its own.
        ended = subprocess.run([*prefix, *command], env={**plain_environment(), **variables}, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        took = (time.perf_counter() - begin) * 1e3
        outcome.expect(ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr[-300:]!r}")
        return took

    ways = {
        "bare": lambda: timed([], {}),
        "again": lambda: timed([], {}),
        "preloaded": lambda: timed([], {"LD_PRELOAD": str(library()), "GPULIMIT_MAX": LIMIT}),
        "run": lambda: timed([str(binary("gpulimit")), "run", "--max", LIMIT, "--"], {}),
    }
    seen: dict[str, list[float]] = {way: [] for way in ways}
    for _, order in orders(ways, ROUNDS):
        for way in order:
            seen[way].append(ways[way]())
    median = {way: statistics.median(times) for way, times in seen.items()}
    ratio, null, by_run = (ratios(seen[way], seen["bare"])[0] for way in ("preloaded", "again", "run"))
    outcome.figures |= {"ms": {k: round(v, 2) for k, v in median.items()}, "ratio": ratio, "bare_ratio": null, "by_run": by_run, "aim": 1.05, "rounds": seen}
    slow = " SLOW" if ratio > 1.05 + NOISE + abs(null - 1) else ""
    outcome.key.append(f"{ratio:.3f}{slow} (bare {null:.3f}, {median['bare']:.0f} ms), by run {by_run:.3f}")
