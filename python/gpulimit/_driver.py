"""What NVIDIA's libraries say of devices. Asking makes no context and loads no CUDA driver."""

from __future__ import annotations

import ctypes
import os
import uuid
from functools import lru_cache
from typing import Optional, Tuple

from ._library import Device, Error, named

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class _MemoryInfo(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    total: int
    free: int
    used: int
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _cuda() -> Optional[ctypes.CDLL]:
    """Returns the CUDA driver if the process has loaded it."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def allow_frees_during_captures() -> None:
    """Makes the calling thread one whose calls do not spoil captures of other threads."""
    cuda = _cuda()
    if cuda is not None:
        cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


def is_started() -> bool:
    """Returns whether the process has initialised the CUDA driver, and sees a device."""
    cuda, device = _cuda(), ctypes.c_int()
    return cuda is not None and bool(cuda.cuDeviceGet(ctypes.byref(device), 0) == 0)


def current() -> int:
    """Returns the ordinal of the calling thread's current device, 0 if it has none."""
    cuda, ordinal = _cuda(), ctypes.c_int(0)
    if cuda is not None and cuda.cuCtxGetDevice(ctypes.byref(ordinal)) == 0:
        return ordinal.value
    return 0


def uuid_of(ordinal: int) -> Optional[str]:
    """Returns the UUID of a device without its prefix, or None before the driver is initialised."""
    cuda, device, found = _cuda(), ctypes.c_int(), ctypes.create_string_buffer(16)
    if cuda is None or cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None
    try:
        ask = cuda.cuDeviceGetUuid_v2  # from CUDA 11.4 on; names MIG instances
    except AttributeError:
        ask = cuda.cuDeviceGetUuid
    return str(uuid.UUID(bytes=found.raw)) if ask(found, device) == 0 else None


@lru_cache(maxsize=None)
def _nvml() -> ctypes.CDLL:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise Error(f"no GPU here: cannot load libnvidia-ml.so.1 of NVIDIA's driver ({error})")
    code = nvml.nvmlInit_v2()
    if code != 0:
        raise Error(f"no GPU here: NVML does not start (code {code})")
    return nvml


def _by_index(index: int) -> Optional[ctypes.c_void_p]:
    handle = ctypes.c_void_p()
    code = _nvml().nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    return handle if code == 0 else None


def _by_uuid(start: str) -> Optional[ctypes.c_void_p]:
    """Finds a device by its UUID, or a GPU by the beginning of one."""
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if _nvml().nvmlDeviceGetHandleByUUID(start.encode(), ctypes.byref(handle)) == 0:
        return handle
    count = ctypes.c_uint()
    _nvml().nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        found = _by_index(index)
        if found and _nvml().nvmlDeviceGetUUID(found, text, ctypes.c_uint(len(text))) == 0:
            if text.value.decode(errors="replace").startswith(start):
                return found
    return None


def _by_ordinal(ordinal: int) -> Optional[ctypes.c_void_p]:
    """Finds a device by its CUDA ordinal.

    Until the driver is initialised the ordinal counts in NVML's order, which is CUDA's where the
    GPUs are of one kind or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    known = uuid_of(ordinal)
    if known:
        return _by_uuid(f"GPU-{known}") or _by_uuid(f"MIG-{known}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _by_index(ordinal)
    words = [word.strip() for word in visible.split(",")]
    if ordinal >= len(words):
        return None
    word = words[ordinal]
    return _by_index(int(word)) if word.isdecimal() else _by_uuid(word) if word else None


def memory(device: Device) -> Tuple[int, int, int]:
    """Returns the memory of a device in bytes by NVML: total, free, used."""
    name = named(device)
    text = str(current()) if name is None else name.decode()
    handle = _by_ordinal(int(text)) if text.isdecimal() else _by_uuid(text)
    if handle is None:
        raise Error(f"no such GPU in this process: device {text if device is None else device}")
    info = _MemoryInfo()
    code = _nvml().nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info))
    if code != 0:
        raise Error(f"NVML has no figures of device {text} (code {code})")
    return info.total, info.free, info.used
