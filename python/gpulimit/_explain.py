"""What PyTorch held when it ran out of memory, noted for `gpulimit why`.

`gpulimit run --explain` copies this file to a folder in front of PYTHONPATH as `sitecustomize.py`,
so it imports nothing but the standard library. It runs the `sitecustomize` that it hides, and waits
until the program itself imports torch. Python does not read PYTHONPATH with -I or -E, nor
`sitecustomize` with -S: the variable HEARD is then missing, which the record of a refusal says.
"""

import contextlib
import importlib.util
import json
import os
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Optional

ROOT = "GPULIMIT_EXPLAIN"
"""The variable that names the folder for the notes."""
HEARD = "GPULIMIT_HEARD"
"""The variable with the pid of a process that has read this file."""
NAME = ".explained-"
"""The beginning of the name of a note; the pid follows."""
BATCH = "_gpulimit_batch"
"""The name in torch of the last measurement of `find_batch`: a batch, what PyTorch reserved for it,
and what each further element takes, in bytes."""
MOST_NOTES = 16


def note(device: int, size: int) -> None:
    """Writes what PyTorch holds on a device, which has just refused `size` bytes to it.

    Raises OSError if the folder cannot be written, and what PyTorch raises.
    """
    root = os.environ.get(ROOT) or f"/dev/shm/gpulimit-{os.getuid()}"
    torch: Any = sys.modules["torch"]
    segments = [it for it in torch.cuda.memory_snapshot() if it["device"] == device]
    blocks = [block for segment in segments for block in segment["blocks"]]
    free = [block["size"] for block in blocks if block["state"] == "inactive"]
    figures = {
        "pid": os.getpid(),
        "time_ms": int(time.time() * 1000),
        "asked": size,
        "reserved": torch.cuda.memory_reserved(device),
        "allocated": torch.cuda.memory_allocated(device),
        "largest_free": max(free, default=0),
        "expandable": any(segment.get("is_expandable") for segment in segments),
        "batch": getattr(torch, BATCH, None),
    }
    forget_old(root)
    path = os.path.join(root, f"{NAME}{os.getpid()}")
    draft = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
        json.dump(figures, file)
    os.replace(draft, path)


def forget_old(root: str) -> None:
    """Removes all notes but the newest ones."""
    with os.scandir(root) as found:
        notes = [(it.stat().st_mtime, it.path) for it in found if it.name.startswith(NAME)]
    for _, path in sorted(notes)[: 1 - MOST_NOTES]:
        os.unlink(path)


def observe(device: int, size: int, _total: int, _free: int) -> None:
    """Takes PyTorch's report of an error. An exception would take the place of the error."""
    try:
        note(device, size)
    except Exception:  # The note is missing, and `why` says so.
        pass


class Finder:
    """Finds torch once, as the other finders do, and attaches the observer when it is loaded."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Optional[ModuleSpec]:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(torch: Any) -> None:
                execute(torch)
                with contextlib.suppress(Exception):  # Another module of this name.
                    attach(torch)

            loader.exec_module = exec_module
        return spec


def attach(torch: Any) -> None:
    """Attaches the observer when the program first uses CUDA: to attach it initialises CUDA."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:
        torch.cuda._lazy_call(lambda: attach(observe))


def hear() -> None:
    """Notes that this process has read this file."""
    os.environ[HEARD] = str(os.getpid())


def begin() -> None:
    """Runs the hidden `sitecustomize`, and waits for torch."""
    sys.meta_path.insert(0, Finder())
    hear()
    os.register_at_fork(after_in_child=hear)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != own]
    hidden = PathFinder.find_spec(__name__, sys.path)
    if hidden is not None and hidden.loader is not None:
        module = importlib.util.module_from_spec(hidden)
        sys.modules[__name__] = module
        hidden.loader.exec_module(module)


if __name__ == "sitecustomize":
    begin()
