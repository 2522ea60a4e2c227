"""Times of programs that take turns of milliseconds, compared turn by turn.

A machine may be twice as fast for some seconds (measured on an H100): times of the same turn have
the same conditions, times of different turns may not.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator


def take_turns(
    ways: Collection[str], turns: int, run: Callable[[str], float]
) -> dict[str, list[float]]:
    """Returns the times of each way by turn, after one more turn that warms up."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn, order in orders(ways, turns + 1):
        for way in order:
            took = run(way)
            if turn > 0:
                times[way].append(took)
    return times


def orders(ways: Iterable[str], turns: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the order of the ways in each turn: every way comes first, and follows every other
    way, equally often, so that none always runs on the warmer machine.
    """
    forth = list(ways)
    both = [list(way) for way in (forth, forth[::-1])]
    rounds = [way[at:] + way[:at] for at in range(len(forth)) for way in both]
    return zip(range(turns), itertools.cycle(rounds))


def ratios(times: list[float], others: list[float]) -> tuple[float, list[float]]:
    """Returns the median of the ratios of all turns, and the quartiles."""
    found = sorted(one / other for one, other in zip(times, others, strict=True))
    at = len(found) // 4
    return round(statistics.median(found), 4), [round(found[at], 4), round(found[-1 - at], 4)]


def compared(times: list[float], bare: list[float], again: list[float]) -> dict:
    """Returns the ratio to `bare`, and the ratio of `again`, a second bare program, which shows how
    much two equal programs differ.
    """
    (ratio, quartiles), (null, null_quartiles) = (ratios(each, bare) for each in (times, again))
    return {
        "ratio": ratio,
        "quartiles": quartiles,
        "bare_ratio": null,
        "bare_quartiles": null_quartiles,
    }
