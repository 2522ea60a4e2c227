"""The C interface of libgpulimit.so, as gpulimit.h declares it."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Optional, Tuple, Union

Device = Union[int, str, None]
"""None for the current device, a CUDA ordinal in this process, or a UUID as NVML prints it."""

VERSION = 1
OK, NOT_LOADED, NO_GROUP, NO_DEVICE = range(4)
INVALID, TIMEOUT, INTERRUPTED, NOT_REGISTERED, FAILED = range(4, 9)
NO_LIMIT = 2**64 - 1


class Error(RuntimeError):
    """A figure that cannot be had, or a function that cannot work here; the text says why."""


Error.__module__ = "gpulimit"


class Memory(ctypes.Structure):
    """`struct gpulimit_memory`: the memory of a device, in bytes."""

    size: int
    limit: int
    usage: int
    available: int
    total: int
    own: int
    allocations: int
    pools: int
    managed: int
    driver: int
    idle: int
    peak: int
    refusals: int
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size",
            "limit",
            "usage",
            "available",
            "total",
            "own",
            "allocations",
            "pools",
            "managed",
            "driver",
            "idle",
            "peak",
            "refusals",
        )
    ]


class Pressure(ctypes.Structure):
    """`struct gpulimit_pressure`: a request to give memory back."""

    size: int
    bytes: int
    reason: int
    ordinal: int
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("reason", ctypes.c_int32),
        ("ordinal", ctypes.c_int32),
        ("uuid", ctypes.c_char * 64),
        ("group", ctypes.c_char * 256),
    ]

    @property
    def device(self) -> Union[int, str]:
        """The CUDA ordinal, or the UUID of a device that this process does not see."""
        return self.ordinal if self.ordinal >= 0 else str(self.uuid, errors="replace")


@lru_cache(maxsize=None)
def _loaded() -> Optional[ctypes.CDLL]:
    """Returns the functions of the library, or None without it.

    The library is preloaded when the process starts, or never. A second copy would charge twice,
    so this looks only among what is loaded.
    """
    library = ctypes.CDLL(None)
    try:
        version = library.gpulimit_version
        version.restype = ctypes.c_uint32
        if version() < VERSION:
            return None
        library.gpulimit_group.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.gpulimit_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        number = ctypes.POINTER(ctypes.c_uint64)
        library.gpulimit_peak_begin.argtypes = [ctypes.c_char_p, number]
        library.gpulimit_peak_read.argtypes = [ctypes.c_uint64, number]
        library.gpulimit_peak_end.argtypes = [ctypes.c_uint64, number]
        library.gpulimit_memory.argtypes = [ctypes.c_char_p, ctypes.POINTER(Memory)]
        library.gpulimit_pressure_wait.argtypes = [ctypes.c_int, ctypes.POINTER(Pressure)]
        library.gpulimit_pressure_register.argtypes = []
        library.gpulimit_pressure_unregister.argtypes = []
        library.gpulimit_captures.argtypes = []
    except AttributeError:
        return None
    return library


def is_loaded() -> bool:
    """Returns whether the process has loaded the library."""
    return _loaded() is not None


def group() -> Optional[str]:
    """Returns the name of the process's group, or None if the process is in no group."""
    library = _loaded()
    if library is None:
        return None
    name = ctypes.create_string_buffer(4096)
    if library.gpulimit_group(name, len(name)) != OK:
        return None
    return name.value.decode(errors="replace")


def failure() -> str:
    """Returns why the process could not join its group; an empty text if it could."""
    library, text = _loaded(), ctypes.create_string_buffer(4096)
    if library is None or library.gpulimit_error(text, len(text)) != OK:
        return ""
    return text.value.decode(errors="replace")


def named(device: Device) -> Optional[bytes]:
    """Returns the text that the C functions take for a device."""
    if device is None:
        return None
    # True is an int as well, and no device.
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        # The driver's functions take 32 bits, and no machine has that many devices.
        return str(min(device, 2**31 - 1)).encode()
    if isinstance(device, str) and device.isascii() and device.isdecimal():
        return named(int(device[:11]))
    if isinstance(device, str) and device.isascii() and device.startswith(("GPU-", "MIG-")):
        return device.encode()
    raise ValueError(f"invalid device {device!r}: expected an ordinal such as 0, or a UUID")


def memory(device: Device) -> Tuple[int, Memory]:
    """Returns a code, and the figures of a device if the code is OK."""
    library, name = _loaded(), named(device)
    figures = Memory(size=ctypes.sizeof(Memory))
    if library is None:
        return NOT_LOADED, figures
    return library.gpulimit_memory(name, ctypes.byref(figures)), figures


def begin_peak(device: Device) -> Tuple[int, Optional[int]]:
    """Begins to measure the process's peak. Returns a code, and the measurement if it is OK."""
    library, number = _loaded(), ctypes.c_uint64()
    if library is None:
        return NOT_LOADED, None
    code = library.gpulimit_peak_begin(named(device), ctypes.byref(number))
    return code, number.value if code == OK else None


def peak(measurement: int, ends: bool) -> int:
    """Returns the peak since the begin of a measurement, in bytes; 0 in a forked child."""
    library, peak = _loaded(), ctypes.c_uint64()
    if library is None:
        return 0
    read = library.gpulimit_peak_end if ends else library.gpulimit_peak_read
    return peak.value if read(measurement, ctypes.byref(peak)) == OK else 0


def register() -> bool:
    """Registers the process for pressure. Returns whether the process can be asked."""
    library = _loaded()
    return library is not None and bool(library.gpulimit_pressure_register() == OK)


def unregister() -> None:
    """Undoes one call of `register` that returned True."""
    library = _loaded()
    if library is not None:
        library.gpulimit_pressure_unregister()


def wait(milliseconds: int) -> Tuple[int, Pressure]:
    """Waits for pressure, without the GIL. Returns a code, and what is asked if the code is OK."""
    asked = Pressure(size=ctypes.sizeof(Pressure))
    library = _loaded()
    if library is None:
        return NOT_LOADED, asked
    return library.gpulimit_pressure_wait(milliseconds, ctypes.byref(asked)), asked


def captures() -> int:
    """Returns the number of streams of this process that are being captured."""
    library = _loaded()
    return 0 if library is None else library.gpulimit_captures()
