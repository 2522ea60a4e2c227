"""The judge observes from outside how much memory each process holds, as the driver itself reports
it.

The judge is a process of its own without any preload, and samples NVML's list of processes every 2
ms. Its standard input takes one JSON object per line: `{"do": "read"}`, `{"do": "reset"}`,
`{"do": "stop"}`.

All memory figures are bytes, all times milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

INTERVAL_MS = 2.0
LIMIT_MS = 5.0
"""A longer gap between two samples is counted, since the evidence must have a sample every 5 ms."""


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of `nvmlDeviceGetComputeRunningProcesses_v3`: 24 bytes per entry."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


assert ctypes.sizeof(ProcessInfo) == 24


class NvmlError(Exception):
    """NVML returned a status other than success."""


class Nvml:
    """The calls of libnvidia-ml that the checks need, for one GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call(
            "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._device)
        )
        self._room = 512
        self._list = self._lib.nvmlDeviceGetComputeRunningProcesses_v3

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            raise NvmlError(f"{name} answered {status}")

    def processes(self) -> dict[int, int]:
        """Returns the driver's figure of each process in bytes by pid, contexts included."""
        count, infos = ctypes.c_uint(self._room), (ProcessInfo * self._room)()
        status = self._list(self._device, ctypes.byref(count), infos)
        if status:
            raise NvmlError(f"nvmlDeviceGetComputeRunningProcesses_v3 answered {status}")
        held: dict[int, int] = {}
        for info in infos[: count.value]:
            held[info.pid] = held.get(info.pid, 0) + info.used
        return held

    def _text(self, name: str, device: bool = True) -> str:
        buffer = ctypes.create_string_buffer(96)
        leading = (self._device,) if device else ()
        self._call(name, *leading, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace")

    def name(self) -> str:
        """The product name."""
        return self._text("nvmlDeviceGetName")

    def uuid(self) -> str:
        """The GPU's UUID, `GPU-…`."""
        return self._text("nvmlDeviceGetUUID")

    def bus(self) -> str:
        """The PCI bus id, `00000000:1B:00.0`."""
        info = ctypes.create_string_buffer(68)
        self._call("nvmlDeviceGetPciInfo_v3", self._device, info)
        return info.raw[36:68].split(b"\0")[0].decode()

    def count(self) -> int:
        """Returns the number of GPUs of the machine."""
        number = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def driver(self) -> str:
        """The driver's version."""
        return self._text("nvmlSystemGetDriverVersion", device=False)

    def total(self) -> int:
        """Returns the GPU's memory in bytes, as NVML reports it."""
        return self._memory(0)

    def free(self) -> int:
        """Returns the free bytes of the GPU, as NVML reports them."""
        return self._memory(1)

    def _memory(self, which: int) -> int:
        sizes = (ctypes.c_ulonglong * 3)()
        self._call("nvmlDeviceGetMemoryInfo", self._device, sizes)
        return int(sizes[which])


def session_of(pid: int) -> int | None:
    """Returns the session id of a process, or None if the process is gone or cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command between the parentheses may itself contain spaces and parentheses.
    return int(stat[stat.rindex(")") + 2 :].split()[3])


class Tally:
    """The peaks and last figures of the processes of one session."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._sessions: dict[int, int | None] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets the peaks and the gaps, but not which processes belong to the session."""
        self.peak: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.others: dict[int, int] = {}
        self.sum_peak = self.sum_last = self.samples = self.late = self.failed = 0
        self.gap_max = self.gap_sum = 0.0
        self._previous: float | None = None

    def failed_sample(self) -> None:
        """Counts a sample without an answer; the gap to the next good sample will show it."""
        self.failed += 1

    def sample(self, held: dict[int, int], now: float) -> None:
        """Adds one list of processes, read at `now` (milliseconds)."""
        if self._previous is not None:
            gap = now - self._previous
            self.gap_sum += gap
            self.gap_max = max(self.gap_max, gap)
            self.late += gap > LIMIT_MS
        self._previous = now
        self.samples += 1
        # A pid that has left the list may come back as another process, so its session is looked up
        # again.
        for pid in [pid for pid in self._sessions if pid not in held]:
            del self._sessions[pid]
        total = 0
        self.last = {}
        for pid, used in held.items():
            # The session is remembered because a killed process stays on the list after it has left
            # /proc.
            if self._sessions.get(pid) is None:
                self._sessions[pid] = session_of(pid)
            if self._sessions[pid] != self.session:
                self.others[pid] = max(used, self.others.get(pid, 0))
                continue
            total += used
            self.last[pid] = used
            self.peak[pid] = max(used, self.peak.get(pid, 0))
        self.sum_last = total
        self.sum_peak = max(self.sum_peak, total)

    def report(self) -> dict:
        """Returns the figures since the last reset."""
        steps = max(1, self.samples - 1)
        return {
            "sum_peak": self.sum_peak,
            "sum_last": self.sum_last,
            "peak": {str(pid): used for pid, used in self.peak.items()},
            "last": {str(pid): used for pid, used in self.last.items()},
            "others": {str(pid): used for pid, used in self.others.items()},
            "samples": self.samples,
            "failed_samples": self.failed,
            "interval_mean_ms": round(self.gap_sum / steps, 3),
            "gap_max_ms": round(self.gap_max, 3),
            "gaps_over_5_ms": self.late,
        }


def serve(index: int, session: int) -> None:
    """Samples until it is told to stop, or until its standard input is closed."""
    nvml, tally = Nvml(index), Tally(session)
    try:
        os.nice(-10)
    except OSError:
        pass  # without this right the sampler runs at the normal priority
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    pending = b""
    print(json.dumps({"ready": True}), flush=True)
    tick = time.monotonic() * 1e3
    while True:
        try:
            tally.sample(nvml.processes(), time.monotonic() * 1e3)
        except NvmlError:
            tally.failed_sample()
        tick = max(tick + INTERVAL_MS, time.monotonic() * 1e3)
        # poll() waits whole milliseconds only, so the loop sleeps and then polls without a wait.
        time.sleep(max(0.0, tick - time.monotonic() * 1e3) / 1e3)
        if not poll.poll(0):
            continue
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            return
        pending += data
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            order = json.loads(line)["do"]
            if order == "stop":
                return
            if order == "reset":
                tally.reset()
            else:
                # An order is answered with a sample taken after it, never with an earlier one.
                try:
                    tally.sample(nvml.processes(), time.monotonic() * 1e3)
                except NvmlError:
                    tally.failed_sample()
            print(json.dumps(tally.report()), flush=True)


LIMITING = (
    "GPULIMIT_",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "NVIDIA_GPU_MEMORY_LIMIT",
)
HARMLESS = ("GPULIMIT_ROOT", "GPULIMIT_SIM_")


def unhooked(environment: dict[str, str]) -> dict[str, str]:
    """Returns an environment without the preload and without any limit; the variables that choose
    the root and the simulated machine stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if name != "LD_PRELOAD" and (not name.startswith(LIMITING) or name.startswith(HARMLESS))
    }


class Judge:
    """The client of a judge, which samples the processes of the caller's session."""

    def __init__(self, index: int = 0, session: int | None = None) -> None:
        self.index = index
        command = [sys.executable, "-I", __file__, str(index), str(session or os.getsid(0))]
        self._process = subprocess.Popen(
            command,
            env=unhooked(dict(os.environ)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if not self._answer().get("ready"):
            raise NvmlError("the sampler did not start")

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("stop")
            self._process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _ask(self, order: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": order}) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise NvmlError("the sampler ended (is libnvidia-ml.so.1 there?)")
        return json.loads(line)

    def read(self) -> dict:
        """Returns the figures since the last reset, with a sample taken now as the last one."""
        self._ask("read")
        return self._answer()

    def reset(self) -> None:
        """Resets the peaks, for the next phase of a check."""
        self._ask("reset")
        self._answer()

    def settled(self, tries: int = 40) -> dict:
        """Returns the figures once the sum has stood still for 60 ms (after a synchronise call the
        driver frees memory within that time).
        """
        before = self.read()
        for _ in range(tries):
            time.sleep(0.06)
            now = self.read()
            if now["sum_last"] == before["sum_last"]:
                return now
            before = now
        return before


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
