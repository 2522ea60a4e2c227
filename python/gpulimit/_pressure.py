"""The thread that waits for pressure and calls the program's functions.

The library never calls back: a call from a hook would need the GIL while the framework holds its
allocator's lock, and other threads take the two in the other order. The thread holds no lock
during a call, and makes one call at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import sys
import threading
import time
from types import FunctionType
from typing import Callable, List, NoReturn, Optional, TypeVar, Union

from . import _driver, _library

Callback = Callable[[int, Union[int, str]], object]
_C = TypeVar("_C", bound=Callback)

LOOK = 1_000
"""How often the thread looks whether it is still needed, in milliseconds."""
NEXT_LOOK = 0.01
"""How long a call is put off while a stream is captured, in seconds."""
PATIENCE = 2.0
"""How long the end of the interpreter waits for a call under way, in seconds."""

log = logging.getLogger("gpulimit")


class _Waiter:
    """The functions of one process, and their thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callbacks: List[Callback] = []
        self.thread: Optional[threading.Thread] = None
        self.stopped = False
        self.idle = threading.Event()
        self.idle.set()

    def add(self, callback: Callback) -> None:
        ending = None
        with self.lock:
            self.callbacks = [known for known in self.callbacks if not _same(known, callback)]
            self.callbacks.append(callback)
            if self.thread is not None or self.stopped or not _library.register():
                return
            thread = threading.Thread(target=self.serve, name="gpulimit-pressure", daemon=True)
            self.thread = thread
            try:
                thread.start()
            except RuntimeError as error:
                self.leave(thread)
                if "interpreter shutdown" not in str(error):
                    raise
                ending = error
        if ending is not None:
            # In a function of atexit, and in Python 3.12 after the end of the main thread.
            say(logging.WARNING, "on_pressure has no effect: Python is ending (%s)", ending)

    def remove(self, callback: Callback) -> None:
        with self.lock:
            self.callbacks = [known for known in self.callbacks if known != callback]

    def serve(self) -> None:
        """Waits and calls until no function is left, or the process ends."""
        try:
            while self.is_needed():
                code, asked = _library.wait(LOOK)
                if code == _library.OK:
                    self.call(asked.bytes, asked.device)
                elif code == _library.NOT_REGISTERED and self.renew():
                    pass
                elif code not in (_library.TIMEOUT, _library.INTERRUPTED) and not self.stopped:
                    say(logging.ERROR, "cannot wait for pressure on GPU memory (code %d)", code)
                    return
        finally:
            # Nobody answers a process that stays registered without the thread.
            with self.lock:
                self.leave(threading.current_thread())

    def is_needed(self) -> bool:
        """Returns whether the thread goes on. A function that is added later starts a new one."""
        with self.lock:
            if self.callbacks and not self.stopped:
                return True
            self.leave(threading.current_thread())
            return False

    def renew(self) -> bool:
        """Registers anew after another part of the program, not `stop`, has undone this."""
        with self.lock:
            return not self.stopped and _library.register()

    def leave(self, thread: threading.Thread) -> None:
        """Undoes the registration of a thread, once. The caller holds the lock."""
        if self.thread is thread:
            self.thread = None
            _library.unregister()

    def call(self, size: int, device: Union[int, str]) -> None:
        """Calls the functions, one after the other."""
        # In this order: `stop` sets `stopped` first, and then waits until the thread is idle.
        self.idle.clear()
        try:
            for callback in self.callbacks:
                while _library.captures() and not self.stopped:
                    time.sleep(NEXT_LOOK)
                if self.stopped:
                    return
                # A capture may begin now. The driver lets a thread in the relaxed mode free
                # memory during captures of other threads, and leaves these captures valid.
                _driver.allow_frees_during_captures()
                pid, status = os.getpid(), 0
                try:
                    callback(size, device)
                except BaseException as error:
                    if isinstance(error, SystemExit) and os.getpid() != pid:
                        status = error.code if isinstance(error.code, int) else bool(error.code)
                    else:
                        status = 1
                        failed = "%r failed when GPU memory was asked for"
                        say(logging.ERROR, failed, callback, exc_info=True)
                if os.getpid() != pid:
                    _end(status)
        finally:
            self.idle.set()

    def stop(self) -> None:
        """Makes no further call, and lets the call under way and the thread end.

        The end of a sub-interpreter in which a thread is left ends the process.
        """
        end = time.monotonic() + PATIENCE
        self.stopped = True
        self.idle.wait(PATIENCE)
        # A comparison of the program's functions may hang, and then keeps the lock.
        if not self.lock.acquire(timeout=max(0.0, end - time.monotonic())):
            return
        thread = self.thread
        if thread is not None:
            self.leave(thread)  # also ends the thread's wait
        self.lock.release()
        if thread is not None:
            thread.join(max(0.0, end - time.monotonic()))


def say(level: int, text: str, *arguments: object, exc_info: bool = False) -> None:
    """Logs, and does no harm if a handler raises, or standard error is closed."""
    with contextlib.suppress(BaseException):
        log.log(level, text, *arguments, exc_info=exc_info)


def _end(status: int) -> NoReturn:
    """Ends a child that a function has forked: it has nothing to return to."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(Exception):  # None, closed, or full
            stream.flush()
    os._exit(status & 0xFF)


def _same(known: Callback, new: Callback) -> bool:
    """Returns whether `new` replaces `known`: it is the same, or a notebook's cell ran again."""
    if known == new:
        return True
    return (
        isinstance(known, FunctionType)
        and isinstance(new, FunctionType)
        and known.__module__ == new.__module__ == "__main__"
        and known.__qualname__ == new.__qualname__
        and "<" not in new.__qualname__
    )


_waiter = _Waiter()


def on_pressure(callback: _C) -> _C:
    """Has `callback(bytes, device)` called when memory of this process is asked for.

    `bytes` is how much should be given back. `device` is a CUDA ordinal in this process, or the
    UUID of a device that the process does not see. The calls are made in a thread of this module,
    one at a time, at most five times a second, and never while a stream of the process is
    captured. The function must not wait for long: the process that asks waits for
    `pressure_timeout`, two seconds by default. An exception is logged (logger `gpulimit`) and has
    no other effect.

    A function that is added twice is called once. In a notebook a function takes the place of the
    one of the same name. A forked child begins without functions, because CUDA's memory does not
    survive a fork. Where no limit can hold (`active()` is False), the function is never called.
    """
    if not callable(callback):
        raise TypeError(f"on_pressure takes a function, not {callback!r}")
    if inspect.iscoroutinefunction(callback):
        raise TypeError(f"on_pressure takes a function without async, not {callback!r}")
    try:
        inspect.signature(callback).bind(0, 0)
    except ValueError:
        pass  # a function of C without a signature
    except TypeError as error:
        raise TypeError(f"on_pressure calls {callback!r} with bytes and device: {error}") from None
    _waiter.add(callback)
    return callback


def off_pressure(callback: Callback) -> None:
    """Removes a function that `on_pressure` has added. A call under way goes on."""
    _waiter.remove(callback)


def _in_child() -> None:
    """Begins anew: the thread stayed in the parent, which may have held the lock."""
    global _waiter
    _waiter.stopped = True  # ends the thread's loop if a function has forked
    _waiter = _Waiter()


def _at_exit() -> None:
    _waiter.stop()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
