"""PyTorch: gives its cache back, explains out-of-memory errors, and finds the largest batch."""

from __future__ import annotations

import gc
import importlib
import logging
import operator
import os
import sys
import time
from typing import Any, Callable, List, Tuple, Union

from . import _explain, _library, _pressure, _report
from ._library import Error

Report = Union[bool, str, "os.PathLike[str]", Callable[[str], object]]

REST = 1.0
"""The shortest time between two times that the cache is emptied, or reported on, in seconds."""
MARGIN = 0.08
"""The part of the memory that `find_batch` leaves free."""
REFUSALS = 3
"""The number of refused steps after which `find_batch` is content with what has fitted."""
STEPS = 8
"""The most steps that `find_batch` runs after the small ones."""
GROWTH = 16
"""How much larger than the largest known batch `find_batch` tries one at most."""

_report_to: Report = False
_is_observed = False
_is_searching = False
_emptied = _reported = float("-inf")


def enable(report: Report = True) -> None:
    """Gives PyTorch's cached memory back under pressure, and reports out-of-memory errors.

    Call it at any time, before or after the first use of CUDA, once or repeatedly. The cache is
    emptied at most once a second, and never while a stream of the process is captured.
    Tensors stay where they are, so results do not change.

    `report` says where the text of an out-of-memory error goes: True for standard error, False for
    nowhere, the path of a file that it is added to, or a function that takes the text.
    """
    global _report_to, _is_observed
    if not (isinstance(report, (bool, str, os.PathLike)) or callable(report)):
        raise TypeError(f"report takes True, False, a path or a function, not {report!r}")
    torch: Any = importlib.import_module("torch")
    _report_to = report
    if not _is_observed:
        # PyTorch cannot remove an observer, and attaching one initialises CUDA, after which forked
        # children cannot use it. `_lazy_call` waits until the program itself uses CUDA.
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            torch.cuda._lazy_call(lambda: attach(_observe))
            _is_observed = True
    _pressure.on_pressure(_empty_cache)


def disable() -> None:
    """Ends what `enable` has begun."""
    global _report_to
    _report_to = False
    _pressure.off_pressure(_empty_cache)


def _empty_cache(size: int, device: Union[int, str]) -> None:
    """Empties the cache if it holds anything on the device that others need."""
    global _emptied
    torch: Any = sys.modules["torch"]
    if not isinstance(device, int) or not torch.cuda.is_initialized():
        return

    def held() -> int:
        return int(torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    if held() <= 0:
        return
    rest = _emptied + REST - time.monotonic()
    if rest > 0:
        # The other request waits for the answer, so let it wait only for what it asks for.
        if held() < size:
            return
        time.sleep(rest)
        if held() < size or _library.captures():
            return
    try:
        # Freeing makes a context on the thread's current device, which is the first one so far. The
        # thread keeps the device: going back would make a context there, too.
        torch.cuda.set_device(device)
        torch.cuda.empty_cache()
    except RuntimeError as error:
        # PyTorch itself frees nothing while it captures, and in some versions inside of
        # `torch.cuda.use_mem_pool`. The next call tries again.
        if not _library.captures() and "captures_underway" not in str(error):
            raise
    else:
        _emptied = time.monotonic()


def _observe(device: int, size: int, total: int, free: int) -> None:
    """Reports an out-of-memory error.

    PyTorch calls this with the GIL and without its allocator's lock. An exception would take the
    place of the out-of-memory error.
    """
    global _reported
    _explain.observe(device, size, total, free)
    now = time.monotonic()
    # PyTorch also calls this for workspaces of cuDNN, and then goes on with smaller ones.
    if not _report_to or now - _reported < REST or _is_searching:
        return
    _reported = now
    try:
        torch: Any = sys.modules["torch"]
        text = [
            f"gpulimit: PyTorch is out of memory: it asked for {_report.size(size)} on GPU "
            f"{device}, pid {os.getpid()}",
            *_report.lines(device),
            torch.cuda.memory_summary(device, abbreviated=True),
        ]
        _write("\n".join(text) + "\n")
    except Exception:
        _pressure.say(logging.ERROR, "cannot report an out-of-memory error", exc_info=True)


def _write(text: str) -> None:
    if callable(_report_to):
        _report_to(text)
    elif isinstance(_report_to, bool):
        sys.stderr.write(text)
        sys.stderr.flush()
    else:
        with open(_report_to, "a", encoding="utf-8") as file:
            file.write(text)


def find_batch(step: Callable[[int], object], start: int = 64, most: int = 1 << 16) -> int:
    """Returns the largest batch that fits on the current device, at most `most`.

    `step(n)` does the program's usual work with a batch of `n`: mostly forward, backward and the
    optimiser. It really runs, so give it a copy of the model, or restore the model afterwards. The
    memory of two small batches, at most `start`, shows what one more element takes. The batch that
    should then fit is tried, and corrected a few times; the result is one that has run. 8 % of the
    memory stay free. Raises `Error` if not even a batch of 1 fits.

    What others in the group take or give back meanwhile cannot be known: ask again at times, for
    example at each epoch. Neither can data that are larger than those that `step` has used, nor
    memory that does not grow evenly with the batch. Under `on_limit=wait` and `oom=kill` a step
    that does not fit waits, or ends a process: try the batch under `fail` before.
    """
    global _is_searching
    torch: Any = importlib.import_module("torch")
    start, most = operator.index(start), operator.index(most)
    if start < 1 or most < 1:
        raise ValueError(f"invalid start={start}, most={most}: expected at least 1")
    _is_searching = True
    try:
        return _find(torch, step, min(start, most), most)
    finally:
        _is_searching = False


def _find(torch: Any, step: Callable[[int], object], start: int, most: int) -> int:
    refused = 0
    large = start
    while True:
        small = max(1, large // 2)
        # The first step also makes what stays: the optimiser's state, libraries, their workspaces.
        first = _run(torch, step, small) and _run(torch, step, small)
        second = first and (_run(torch, step, large) if large > small else first)
        if first and second:
            break
        refused += 1
        if large == 1 or refused > REFUSALS:
            raise Error(f"a batch of {small} does not fit into the GPU memory left")
        # Each refusal takes the size down quickly: it is a waste of time, and may be logged.
        large = 1 if refused == REFUSALS else max(1, large // 8)
    known: List[Tuple[int, int]] = [(small, first), (large, second)]
    fits, ceiling = large, most + 1
    for _ in range(STEPS):
        size = min(_predict(torch, known), ceiling - 1, fits * GROWTH)
        # An estimate that is hardly better than what has run is not worth a step.
        if size <= fits or refused > REFUSALS:
            break
        if size < fits * 1.02 and size < ceiling - 1:
            break
        peak = _run(torch, step, size)
        if peak:
            known = [known[-1], (size, peak)]
            fits = size
        else:
            refused += 1
            ceiling = fits + max(1, (size - fits) * 3 // 4)
    (small, low), (large, high) = known
    if large > small and high > low:
        # `gpulimit why` computes from it which batch fits.
        setattr(torch, _explain.BATCH, [large, high, (high - low) // (large - small)])
    return fits


def _predict(torch: Any, known: List[Tuple[int, int]]) -> int:
    """Returns the batch that should fill the memory that PyTorch can get, less the margin."""
    from . import available

    (small, low), (large, high) = known
    torch.cuda.empty_cache()
    room = (available(torch.cuda.current_device()) + torch.cuda.memory_reserved()) * (1 - MARGIN)
    if large == small or high <= low:
        return large * GROWTH
    each = (high - low) / (large - small)
    return int(large + (room - high) / each)


def _run(torch: Any, step: Callable[[int], object], size: int) -> int:
    """Runs a step and returns the peak of PyTorch's memory in bytes, or 0 if it was refused."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        step(size)
        torch.cuda.synchronize()
    except RuntimeError as error:
        text = str(error)
        # cuBLAS and cuDNN report a refusal with a status of their own.
        if "out of memory" not in text and "ALLOC_FAILED" not in text:
            raise
        return 0
    # What is reserved in pieces that do not fit counts as well.
    return max(1, int(torch.cuda.max_memory_reserved()))
