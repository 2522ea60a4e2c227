"""A program that does as it is told: one JSON order a line on standard input, one reply a line on standard output.

An order is `{"do": NAME, …arguments}`; the reply is what the handler returned, or `{"error": TYPE, "text": …}` when it
raised. A reply starts with `@`, so that whatever else a framework prints does not disturb.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable


def type_name(error: BaseException) -> str:
    """The exception's full type name, as a user would catch it."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def send(**figures: object) -> None:
    """One reply line."""
    print("@" + json.dumps(figures), flush=True)


def sizes(seed: int, largest: int):
    """Endless odd sizes between 1 MiB and `largest` bytes, the same for the same seed."""
    state = seed * 2654435761 % (1 << 32) or 1
    while True:
        state = (state * 1103515245 + 12345) % (1 << 31)
        yield (1 << 20) + state % (largest - (1 << 20) + 1) | 1


def fill(allocate: Callable[[int], object], seed: int, largest: int, smallest: int = 256 << 10) -> dict:
    """Allocate odd sizes until refused, then ever smaller ones down to `smallest` bytes.

    Returns the blocks, their bytes and the first exception; an exception that is not an out-of-memory one is the
    caller's to judge by its type and text.
    """
    blocks, total, first = [], 0, None
    source, bound = sizes(seed, largest), largest
    while bound >= smallest:
        size = min(next(source), bound)
        try:
            blocks.append(allocate(size))
            total += size
        except Exception as error:
            if first is None:
                first = {"exception": type_name(error), "text": str(error)[:400]}
            bound = min(bound, size) // 2
    return {"blocks": blocks, "bytes": total, **(first or {})}


def serve(handlers: dict[str, Callable]) -> None:
    """Answer orders until the input ends or `quit` comes, whose `status` becomes the exit status."""
    send(ready=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("do")
        if name == "quit":
            sys.exit(order.get("status", 0))
        try:
            send(**(handlers[name](**order) or {}))
        except Exception as error:
            send(error=type_name(error), text=str(error)[:600])
