"""GPU memory of a program under gpulimit: what it may use, and being asked to give it back.

    import gpulimit

    print(gpulimit.limit(), gpulimit.usage(), gpulimit.available())   # bytes
    gpulimit.torch.enable()    # gives PyTorch's cache back when others need the memory

Importing this module opens no driver, starts no thread, and imports no framework. Without the
library, without a limit and without a GPU the module works as well: `active()` is False, and each
figure is the device's own.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, List, Optional

from . import _figures, _library, _other
from ._library import Device, Error
from ._peak import Peak, peak
from ._pressure import off_pressure, on_pressure

if TYPE_CHECKING:
    from . import cupy as cupy
    from . import torch as torch

__all__ = [
    "Device",
    "Error",
    "Peak",
    "active",
    "available",
    "cupy",
    "group",
    "limit",
    "off_pressure",
    "on_pressure",
    "peak",
    "torch",
    "usage",
]

_FRAMEWORKS = ("cupy", "torch")


def active() -> bool:
    """Returns whether the process has loaded the library and is in a group."""
    return _library.group() is not None


def group() -> Optional[str]:
    """Returns the name of the process's group, or None if the process is in no group."""
    return _library.group()


def limit(device: Device = None) -> int:
    """Returns the smallest limit that holds for this process on a device, in bytes.

    Without a limit that is the memory of the device. `device` is a CUDA ordinal in this process, a
    UUID, or None for the calling thread's current device. Raises `Error` if there is no such
    device, here and in `usage` and `available`.
    """
    return _figures.of(device).limit


def usage(device: Device = None) -> int:
    """Returns the usage of the group that sets the limit, in bytes, as `gpulimit show` prints it.

    Where no limit can hold (`active()` is False), that is the device's memory in use by all
    processes.
    """
    return _figures.of(device).usage


def available(device: Device = None) -> int:
    """Returns what this process can still allocate if nobody else does meanwhile, in bytes.

    Memory that a framework keeps in a cache is not in the figure: the framework can use it
    besides.
    """
    return _figures.of(device).available


def _warn() -> None:
    """Warns of a limit that the environment asks for and that nothing keeps."""
    asked = [name for name in ("GPULIMIT_MAX", "GPULIMIT_GROUP") if os.environ.get(name)]
    # `python -m gpulimit` imports this module, too, before it loads the library.
    if asked and sys.argv[:1] != ["-m"] and not _library.is_loaded():
        text = (
            f"{asked[0]} is set, but this program has not loaded libgpulimit.so, and has no limit: "
            "start it with `python -m gpulimit`, or see `gpulimit doctor`"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


_warn()

# Checkers of types would take every name for one of this module.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # The modules of frameworks are imported when they are first named.
        if name in _FRAMEWORKS:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *_FRAMEWORKS})
