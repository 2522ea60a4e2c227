"""What a call costs beside the bare driver, in the same run, in turns. Slow is said, never a failure."""

from __future__ import annotations

import statistics
import subprocess
import time

from harness import Outcome, bare, binary, check, library, plain_environment, preloaded

AIMS = {
    "new_block_pair": 1.02,
    "in_block_pair_1": 1.05,
    "in_block_pair_50000": 1.05,
    "async_pair": 1.20,
    "launch": 1.00,
    "graph_replay_100": 1.00,
    "mem_get_info": None,
}
NOISE = 0.02
"""Two bare runs differ by about this much; a ratio is called slow above its aim plus this."""
ROUNDS = 9
LIMIT = "40G"


@check("speed-calls", timeout=150, lane="alone")
def speed_calls(outcome: Outcome) -> None:
    """Nanoseconds per call or pair, bare and preloaded in turns; ratios of the medians of the rounds."""
    ways = {"bare": lambda: bare([str(binary("bench")), "calls"]), "preloaded": lambda: preloaded([str(binary("bench")), "calls"], LIMIT)}
    seen: dict[str, dict[str, list[float]]] = {way: {name: [] for name in AIMS} for way in ways}
    for turn in range(ROUNDS):
        # The order changes from round to round, so that neither always runs on the warmer machine.
        for way in sorted(ways, reverse=bool(turn % 2)):
            program = ways[way]()
            answer = program.reply(60)
            program.finish()
            for name in AIMS:
                seen[way][name].append(answer[name])
    for name, aim in AIMS.items():
        # Not the best rounds: a machine may be twice as fast for the length of one (measured, H100).
        without, with_us = (statistics.median(seen[way][name]) for way in ("bare", "preloaded"))
        best = [min(seen[way][name]) for way in ("bare", "preloaded")]
        ratio = with_us / without
        slow = aim is not None and ratio > aim + NOISE
        outcome.figures[name] = {
            "bare_ns": round(without, 1), "preloaded_ns": round(with_us, 1), "added_ns": round(with_us - without, 1),
            "ratio": round(ratio, 4), "ratio_of_best": round(best[1] / best[0], 4), "aim": aim, "slow": slow, "rounds": {way: seen[way][name] for way in ways},
        }
        outcome.key.append(f"{name} {ratio:.3f}{' SLOW' if slow else ''}")


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
        "preloaded": lambda: timed([], {"LD_PRELOAD": str(library()), "GPULIMIT_MAX": LIMIT}),
        "run": lambda: timed([str(binary("gpulimit")), "run", "--max", LIMIT, "--"], {}),
    }
    seen: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS):
        for way in sorted(ways, reverse=bool(turn % 2)):
            seen[way].append(ways[way]())
    median = {way: statistics.median(times) for way, times in seen.items()}
    ratio = median["preloaded"] / median["bare"]
    outcome.figures |= {"ms": {k: round(v, 2) for k, v in median.items()}, "ratio": round(ratio, 4), "aim": 1.05, "rounds": seen}
    outcome.key.append(f"{ratio:.3f}{' SLOW' if ratio > 1.05 + NOISE else ''} (bare {median['bare']:.0f} ms), by run {median['run'] / median['bare']:.3f}")
