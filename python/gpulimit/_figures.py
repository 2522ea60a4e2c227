"""The figures of a device: the group's, or those of the device where no limit can hold."""

from __future__ import annotations

from typing import NamedTuple

from . import _driver, _library
from ._library import Device, Error


class Figures(NamedTuple):
    """The memory of a device, in bytes."""

    limit: int
    usage: int
    available: int
    own: int
    peak: int
    refusals: int


def of(device: Device) -> Figures:
    """Returns the figures of a device; raises `Error` if there is no such device."""
    code, memory = _library.memory(device)
    if code == _library.OK:
        return Figures(
            min(memory.limit, memory.total or memory.limit),
            memory.usage,
            memory.available,
            memory.own,
            memory.peak,
            memory.refusals,
        )
    text = "the current device" if device is None else f"device {device}"
    is_limited = code not in (_library.NOT_LOADED, _library.NO_GROUP)
    if code == _library.NO_DEVICE and _driver.is_started():
        raise Error(f"no such GPU in this process: {text}")
    if code == _library.FAILED and _library.failure():
        raise Error(f"this process gets no GPU memory: {_library.failure()}")
    if is_limited and code != _library.NO_DEVICE:
        raise Error(f"libgpulimit.so has no figures of {text} (code {code})")
    # Before CUDA is used the library's NVML answers: its figures are the group's under a limit.
    # Starting CUDA here would make it unusable in children that the program forks later.
    total, free, used = _driver.memory(device)
    # This question may have made the process join its group.
    if is_limited and _library.failure():
        raise Error(f"this process gets no GPU memory: {_library.failure()}")
    return Figures(total, used, free, 0 if is_limited else used, 0, 0)
