"""The report of an out-of-memory error: who in the group holds what."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List, Mapping, Optional

from . import _driver, _library, _program

PATIENCE = 5.0
"""How long the program `gpulimit` may take, in seconds."""
MOST = 10
"""The number of processes that a report lists."""
PARTS = ("allocations", "pools", "managed", "driver")


def size(bytes: Optional[int]) -> str:
    """Formats bytes as the other messages of gpulimit do."""
    if bytes is None:
        return "-"
    if bytes < 1 << 30:
        return f"{bytes / (1 << 20):.1f} MiB"
    return f"{bytes / (1 << 30):.1f} GiB"


def _parts(figures: Mapping[str, Optional[int]]) -> str:
    held = (f"{part} {size(figures[part])}" for part in PARTS if figures.get(part))
    return ", ".join(held) or "nothing"


def _processes(group: str, ordinal: int) -> List[Dict[str, Any]]:
    """Asks `gpulimit ps` for the processes of the outermost group on a device.

    Raises OSError, ValueError or subprocess.SubprocessError if the program does not answer.
    """
    program = _program.path()
    if program is None:
        raise FileNotFoundError("the program gpulimit is not installed")
    # The program needs no library, and a group of its own would be a mistake.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [program, "ps", group.split("/")[0], "--json"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    device = _driver.uuid_of(ordinal)
    found = [line for line in json.loads(done.stdout)["processes"] if line["gpu"]]
    if device is not None:
        found = [line for line in found if line["gpu"]["uuid"].endswith(device)]
    return sorted(found, key=lambda line: -(line["total"] or 0))


def lines(ordinal: int) -> List[str]:
    """Returns what gpulimit knows of a device: the group, its processes, and this process."""
    group = _library.group()
    code, memory = _library.memory(ordinal)
    if group is None or code != _library.OK:
        return ["No limit of gpulimit holds for this process: the GPU itself is full."]
    held = {part: int(getattr(memory, part)) for part in PARTS}
    limit = "no limit" if memory.limit == _library.NO_LIMIT else f"limit {size(memory.limit)}"
    text = [
        f"Group {group}: {limit}, usage {size(memory.usage)}, "
        f"available {size(memory.available)}",
        f"This process holds {size(memory.own)}: {_parts(held)}; "
        f"{size(memory.idle)} more are charged ahead; {memory.refusals} requests were refused",
    ]
    try:
        processes = _processes(group, ordinal)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return [*text, f"The group's processes are unknown: {error}"]
    for line in processes[:MOST]:
        mine = " (this process)" if line["pid"] == os.getpid() else ""
        text.append(
            f"  {size(line['total']):>10}  pid {line['pid'] or '-'}{mine}, {line['user']}, group "
            f"{line['group']}: {_parts(line)}: {line['command'] or '-'}"
        )
    if len(processes) > MOST:
        text.append(f"  and {len(processes) - MOST} more processes: `gpulimit ps`")
    return text
