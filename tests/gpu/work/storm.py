"""One process of a storm on the plain driver API: takes and frees memory of every kind at random
until it is told to rest, or killed.

All sizes are bytes. Every status of the driver must be success or out of memory; any other one is
reported.
"""

from __future__ import annotations

import ctypes
import random
import threading

import agent
from driver import OUT_OF_MEMORY, cuda, start

pointer, u64, size_t = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
MIB = 1 << 20
THREADS = 2
HELD = 24
"""The highest number of allocations that a thread holds."""
resting, resume, ending = threading.Event(), threading.Event(), threading.Event()
quiet = threading.Barrier(THREADS + 1)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Property(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("meta", pointer),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Array(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", size_t),
        ("height", size_t),
        ("depth", size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


class Worker(threading.Thread):
    """A thread with a stream and its allocations: pairs of a kind and a handle."""

    def __init__(self, seed: int, context: ctypes.c_void_p) -> None:
        super().__init__(daemon=True)
        self.dice, self.context = random.Random(seed), context
        self.stream = pointer()
        self.held: list[tuple[str, int]] = []
        self.granted = self.refused = 0
        self.wrong: list[str] = []

    def take(self, kind: str) -> tuple[int, int]:
        """Requests memory of a kind; returns the driver's status and the handle."""
        handle = u64()
        size = int(2 ** self.dice.uniform(8, 28))
        if kind == "linear":
            return cuda.cuMemAlloc_v2(ctypes.byref(handle), size_t(size)), handle.value
        if kind == "pool":
            return (
                cuda.cuMemAllocAsync(ctypes.byref(handle), size_t(size), self.stream),
                handle.value,
            )
        if kind == "vmm":
            wanted = Property(type=1, location=Location(1, 0))
            return (
                cuda.cuMemCreate(
                    ctypes.byref(handle),
                    size_t(max(1, size // (2 * MIB)) * 2 * MIB),
                    ctypes.byref(wanted),
                    u64(0),
                ),
                handle.value,
            )
        side = self.dice.choice([16, 64, 256, 1024])
        wanted = Array(
            width=side, height=side, depth=self.dice.choice([0, 16]), format=0x20, channels=4
        )
        return cuda.cuArray3DCreate_v2(ctypes.byref(handle), ctypes.byref(wanted)), handle.value

    def give(self, kind: str, handle: int) -> int:
        """Frees the memory; returns the driver's status."""
        if kind == "linear":
            return cuda.cuMemFree_v2(u64(handle))
        if kind == "pool":
            return cuda.cuMemFreeAsync(u64(handle), self.stream)
        if kind == "vmm":
            return cuda.cuMemRelease(u64(handle))
        return cuda.cuArrayDestroy(pointer(handle))

    def expect(self, what: str, status: int, *allowed: int) -> bool:
        """Notes a status that is not allowed; returns whether the status is success."""
        if status not in (0, *allowed) and len(self.wrong) < 5:
            self.wrong.append(f"{what}: {status}")
        return status == 0

    def step(self) -> None:
        """Makes one random step."""
        if self.held and (len(self.held) >= HELD or self.dice.random() < 0.45):
            kind, handle = self.held.pop(self.dice.randrange(len(self.held)))
            self.expect(f"giving back {kind}", self.give(kind, handle))
        elif self.dice.random() < 0.02:
            self.expect("cuStreamSynchronize", cuda.cuStreamSynchronize(self.stream))
        else:
            kind = self.dice.choice(["linear", "linear", "pool", "vmm", "array"])
            status, handle = self.take(kind)
            if self.expect(f"taking {kind}", status, OUT_OF_MEMORY):
                self.held.append((kind, handle))
                self.granted += 1
            else:
                self.refused += 1

    def run(self) -> None:
        """Makes random steps until the process ends."""
        self.expect("cuCtxSetCurrent", cuda.cuCtxSetCurrent(self.context))
        # A stream may need a block of the driver's own and may be refused; the legacy stream serves
        # as well.
        self.expect(
            "cuStreamCreate", cuda.cuStreamCreate(ctypes.byref(self.stream), 1), OUT_OF_MEMORY
        )
        while not ending.is_set():
            if resting.is_set():
                cuda.cuStreamSynchronize(self.stream)
                quiet.wait(30)
                resume.wait()
            self.step()


workers: list[Worker] = []


def begin(seed: int) -> dict:
    """Makes a context and starts the threads; the status is 2 if there is no room for a context."""
    begun = start()
    if begun["status"] == 0:
        context = pointer()
        cuda.cuCtxGetCurrent(ctypes.byref(context))
        workers.extend(Worker(seed * THREADS + number, context) for number in range(THREADS))
        for worker in workers:
            worker.start()
    return {"status": begun["status"]}


def figures() -> dict:
    """Returns the counts so far."""
    return {
        "granted": sum(worker.granted for worker in workers),
        "refused": sum(worker.refused for worker in workers),
        "wrong": [wrong for worker in workers for wrong in worker.wrong],
    }


def rest() -> dict:
    """Stops the threads between two steps, with their allocations."""
    resume.clear()
    resting.set()
    quiet.wait(30)
    resting.clear()
    return figures()


if __name__ == "__main__":
    agent.serve({"begin": begin, "rest": rest})
