"""An agent on RMM that runs the snippet of docs/programs-that-share.md. All sizes are bytes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import agent
import rmm

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "python"))

PAGE = (HERE / "docs" / "programs-that-share.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
names: dict = {}


def snippet() -> dict:
    """Runs the snippet; returns whether the process is in a group."""
    exec(next(code for code in CODE if "import rmm" in code), names)
    return {"active": names["gpulimit"].active(), "version": rmm.__version__}


def hold(size: int, times: int) -> dict:
    """Puts `times` buffers of `size` bytes into the cache."""
    for _ in range(times):
        names["cache"][len(names["cache"])] = rmm.DeviceBuffer(size=size)
    return held()


def held() -> dict:
    """Returns the bytes in the cache."""
    return {"bytes": sum(buffer.size for buffer in names["cache"].values())}


def request(size: int) -> dict:
    """Makes one buffer, for which RMM may call the snippet's function, and frees it."""
    try:
        return {"granted": rmm.DeviceBuffer(size=size).size == size, **held()}
    except MemoryError:
        return {"granted": False, **held()}


if __name__ == "__main__":
    agent.serve({order.__name__: order for order in (snippet, hold, held, request)})
