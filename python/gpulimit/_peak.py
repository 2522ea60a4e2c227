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

    refusals: int
    """The requests of this process on the device that were refused."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bytes = self.refusals = 0
        self._measurement: Optional[int] = None
        self._sampler: Optional[threading.Thread] = None
        self._from_start = False

    def __enter__(self) -> Peak:
        if self._device is None:
            # The thread that ends the block may have another current device.
            self._device = _driver.current()
        self._ended = threading.Event()
        self._bytes = self.refusals = 0
        code, self._measurement = _library.begin_peak(self._device)
        held, _, self._refusals_before = self._now()
        # A process that begins CUDA in the block holds nothing before.
        self._from_start = code == _library.NO_DEVICE
        if code in (_library.NOT_LOADED, _library.NO_GROUP):
            self._bytes = held
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
        if self._sampler is not None:
            self._sampler.join()
            self._bytes = max(self._bytes, self._now()[0])
        self._look(ends=True)
        self.refusals = self._now()[2] - self._refusals_before
        self._measurement, self._from_start = None, False

    @property
    def bytes(self) -> int:
        """The largest memory of this process on the device so far, in bytes."""
        self._look(ends=False)
        return self._bytes

    def _look(self, ends: bool) -> None:
        if self._measurement is not None:
            self._bytes = max(self._bytes, _library.peak(self._measurement, ends))
        elif self._from_start:
            self._bytes = self._now()[1]

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE):
            self._bytes = max(self._bytes, self._now()[0])

    def _now(self) -> Tuple[int, int, int]:
        """Returns what is held now, the peak of the process's life, and its refusals."""
        try:
            figures = _figures.of(self._device)
        except Error:
            return 0, 0, 0
        return figures.own, figures.peak, figures.refusals


def peak(device: Device = None) -> Peak:
    """Measures a block: `with gpulimit.peak() as p: …`, then `p.bytes` and `p.refusals`.

    `bytes` is what `gpulimit ps` shows of this process, with its context. The library measures it
    while it charges, so no short peak is missed. `bytes` may be read in the block, too.

    Where no limit can hold (`active()` is False), `bytes` is the device's memory in use by all
    processes, sampled every 5 milliseconds by a thread, and 0 without a GPU.
    """
    _library.named(device)
    return Peak(device)
