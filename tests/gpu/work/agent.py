"""A program that obeys orders: one JSON order per line on standard input, one reply per line on
standard output.

An order is `{"do": NAME, …arguments}`; the reply is the handler's result, or
`{"error": TYPE, "text": …}` after an exception. A reply starts with `@`, which separates it from
other output of a framework.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable


def type_name(error: BaseException) -> str:
    """Returns the exception's full type name, as a user would catch it."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def send(**figures: object) -> None:
    """Prints one reply line."""
    print("@" + json.dumps(figures), flush=True)


def sizes(seed: int, largest: int):
    """Yields endless odd sizes between 1 MiB and `largest` bytes, the same for the same seed."""
    state = seed * 2654435761 % (1 << 32) or 1
    while True:
        state = (state * 1103515245 + 12345) % (1 << 31)
        yield (1 << 20) + state % (largest - (1 << 20) + 1) | 1


def fill(
    allocate: Callable[[int], object], seed: int, largest: int, smallest: int = 256 << 10
) -> dict:
    """Allocates odd sizes until refused, then ever smaller ones down to `smallest` bytes.

    Returns the blocks, their bytes and the first exception; the caller judges by type and text
    whether it is an out-of-memory error.
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
    """Answers orders until the input ends or `quit` comes, with its `status` as exit status."""
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
