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
    "mem_get_info": None,
    "launch": 1.00,
    "graph_replay_100": 1.00,
}
NOISE = 0.02
"""Two bare runs differ by about this much; a ratio is called slow above its aim plus this."""
TURNS = 201
ROUNDS = 9
LIMIT = "40G"


@check("speed-calls", timeout=150, lane="alone")
def speed_calls(outcome: Outcome) -> None:
    """Nanoseconds per call or pair, bare and preloaded in turns of milliseconds; the median of the ratios of all turns."""
    command = [str(binary("bench")), "calls"]
    programs = {"bare": bare(command), "preloaded": preloaded(command, LIMIT)}
    # A machine may be twice as fast for some seconds (measured, H100): the two of a turn have the same conditions, those of other turns may not.
    seen: dict[str, dict[str, list[float]]] = {name: {way: [] for way in programs} for name in AIMS}
    for name in AIMS:
        for turn in range(-1, TURNS):
            # The order changes, so that neither always runs on the warmer machine. The first turn warms up.
            for way in sorted(programs, reverse=bool(turn % 2)):
                answer = programs[way].ask("batch")
                outcome.expect(answer["name"] == name, f"asked for {name}, answered {answer}")
                if turn >= 0:
                    seen[name][way].append(answer["ns"])
        for program in programs.values():
            program.say("next")
    for way, program in programs.items():
        code = program.finish()
        outcome.expect(code == 0, f"{way} ended with {code}: {program.tail()}")
    for name, aim in AIMS.items():
        turns = list(zip(seen[name]["bare"], seen[name]["preloaded"], strict=True))
        ratios = sorted(with_us / without for without, with_us in turns)
        ratio = statistics.median(ratios)
        added = statistics.median(with_us - without for without, with_us in turns)
        slow = aim is not None and ratio > aim + NOISE
        outcome.figures[name] = {
            "ns": {way: round(statistics.median(times), 1) for way, times in seen[name].items()}, "added_ns": round(added, 1),
            "ratio": round(ratio, 4), "quartiles": [round(ratios[TURNS // 4], 4), round(ratios[3 * TURNS // 4], 4)], "aim": aim, "slow": slow,
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
