"""The peak of a block of code."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Optional, Tuple, Type

from . import _driver, _figures, _library
from ._library import Device, Error

SAMPLE = 0.005
"""The time between two samples, in seconds."""


class Peak:
    """The largest GPU memory during a block, and the requests that were refused in it."""

    bytes: int
    """The largest memory of this process on the device, in bytes."""
    refusals: int
    """The requests of this process on the device that were refused."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.bytes = self.refusals = 0

    def __enter__(self) -> Peak:
        device = self._device
        # The thread that samples has a current device of its own.
        self._device = _driver.current() if device is None else device
        self.bytes = self.refusals = 0
        self._ended = threading.Event()
        held, self._peak_before, self._refusals_before = self._now()
        self.bytes = held
        self._sampler = threading.Thread(target=self._sample, name="gpulimit-peak", daemon=True)
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._ended.set()
        self._sampler.join()
        held, peak, refusals = self._now()
        # The library keeps the peak of the process's life. A new one was reached in this block.
        self.bytes = max(self.bytes, held, peak if peak > self._peak_before else 0)
        self.refusals = refusals - self._refusals_before

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE):
            self.bytes = max(self.bytes, self._now()[0])

    def _now(self) -> Tuple[int, int, int]:
        """Returns what is held now, the peak of the process's life, and its refusals."""
        try:
            figures = _figures.of(self._device)
        except Error:
            return 0, 0, 0
        return figures.own, figures.peak, figures.refusals


def peak(device: Device = None) -> Peak:
    """Measures a block: `with gpulimit.peak() as p: …`, then `p.bytes` and `p.refusals`.

    `bytes` is what `gpulimit ps` shows of this process, with its context. The figure is exact if
    the block reaches the highest memory of the process so far. Otherwise it is sampled every 5
    milliseconds by a thread, and memory that is held for a shorter time may be missed.

    Where no limit can hold (`active()` is False), `bytes` is the device's memory in use by all
    processes, and 0 without a GPU.
    """
    _library.named(device)
    return Peak(device)
