"""Support for every check: registration, running programs under a limit, talking to them,
collecting figures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from judge import Judge, unhooked

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
GIB = 1 << 30
CAP = 4 * GIB
"""The limit of most checks, in bytes."""
EXACT = 2 * MIB
"""The largest difference at rest between gpulimit's figure and NVML's, in bytes."""
SLACK = 64 * MIB
"""A program that fills until it is refused must come this near to its limit, in bytes."""


class Skip(Exception):
    """The machine lacks something that the check needs, which the text names."""


@dataclass
class Outcome:
    """The results of a check: failures decide the verdict, and the table shows `key`."""

    figures: dict = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    key: list[str] = field(default_factory=list)

    def expect(self, holds: object, text: str) -> bool:
        """Notes a failure with `text` unless `holds` is true."""
        if not holds:
            self.failures.append(text)
        return bool(holds)


@dataclass(frozen=True)
class Check:
    """A check: its name, its needs, and the time that it may take (seconds)."""

    name: str
    subject: str
    function: Callable[[Outcome], None]
    timeout: float
    needs: tuple[str, ...]
    lane: str


CHECKS: dict[str, Check] = {}


def check(
    name: str, *, timeout: float = 60, needs: tuple[str, ...] = (), lane: str = "main"
) -> Callable:
    """Registers a check whose docstring is its subject.

    The check is skipped without the Python modules in `needs`. Lanes run side by side, and the
    checks of a lane one after the other; the checks of the lane `alone` measure times or need the
    whole GPU, and run last, by themselves.
    """

    def register(function: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        subject = (function.__doc__ or name).strip().splitlines()[0]
        assert name not in CHECKS, name
        CHECKS[name] = Check(name, subject, function, timeout, needs, lane)
        return function

    return register


def missing(modules: tuple[str, ...]) -> list[str]:
    """Returns the Python modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


# ---- paths and names


def binary(name: str) -> Path:
    """Returns the path of a program of the bundle."""
    return HERE / "bin" / name


def library() -> Path:
    """Returns the path of the bundle's preload library."""
    return HERE / "lib" / "gpulimit" / "libgpulimit.so"


def gpu_index() -> int:
    """Returns the NVML index of the GPU under test."""
    return int(os.environ.get("GPU_CHECK_INDEX", "0"))


def mib(size: float) -> str:
    """Formats bytes as MiB for a table cell."""
    return f"{size / MIB:.1f} MiB"


# ---- programs


def plain_environment() -> dict[str, str]:
    """Returns the environment without the preload and without any limit."""
    return unhooked(dict(os.environ))


def python(script: str, *arguments: str) -> list[str]:
    """Returns the command for one of the programs in work/."""
    return [sys.executable, str(HERE / "work" / script), *arguments]


class Program:
    """A running program with its output lines, its standard error and its exit status.

    The standard input and output carry one JSON object per line (see work/agent.py); other output
    is kept as text.
    """

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.command = command
        self._process = subprocess.Popen(
            command,
            env=environment if environment is not None else plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            bufsize=1,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._replies: queue.Queue[dict | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_output),
            threading.Thread(target=self._read_errors),
        ]
        for reader in self._readers:
            reader.daemon = True
            reader.start()

    def _read_output(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("@{"):
                self._replies.put(json.loads(line[1:]))
            else:
                self.lines.append(line.rstrip("\n"))
        self._replies.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.errors.append(line.rstrip("\n"))

    def say(self, do: str, **arguments: object) -> None:
        """Sends an order without waiting for its reply."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as gone:
            raise RuntimeError(f"{self.command[-1]} is gone: {self.tail()}") from gone

    def reply(self, timeout: float = 60) -> dict:
        """Returns the next reply; raises an exception if the program ends or stays silent for
        `timeout` seconds.
        """
        try:
            answer = self._replies.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no reply within {timeout:.0f} s: {self.tail()}") from None
        if answer is None:
            status = self._process.wait(10)
            raise RuntimeError(f"the program ended with {status}: {self.tail()}")
        return answer

    def ask(self, do: str, timeout: float = 60, **arguments: object) -> dict:
        """Sends an order and waits for its reply."""
        self.say(do, **arguments)
        return self.reply(timeout)

    def finish(self, timeout: float = 30) -> int:
        """Closes the program's input, waits for its end, and returns its status (negative: the
        signal).
        """
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise TimeoutError(f"no end within {timeout:.0f} s: {self.tail()}") from None
        for reader, pipe in zip(self._readers, (self._process.stdout, self._process.stderr)):
            reader.join(5)
            # A grandchild may still hold the other end of the pipe, and the reader then still
            # waits.
            if pipe and not reader.is_alive():
                pipe.close()
        return status

    @property
    def pid(self) -> int:
        """The pid of the command itself."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kills the program and its children, and waits for its death."""
        for child in children(self._process.pid):
            os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def refusals(self) -> list[str]:
        """Returns the lines that gpulimit printed."""
        return [line for line in self.errors if line.startswith("gpulimit: ")]

    def tail(self) -> str:
        """Returns the end of the program's output, for the text of a failure."""
        return " | ".join((self.lines[-2:] + self.errors[-4:]))[-600:]


def children(pid: int) -> list[int]:
    """Returns the running children of a process."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def capped(
    command: list[str], limit: str = "4G", name: str | None = None, **variables: str
) -> Program:
    """Starts a program under `gpulimit run --max LIMIT [--name NAME]`."""
    group = ["--name", name] if name else []
    front = [str(binary("gpulimit")), "run", "--max", limit, *group, "--"]
    return Program(front + command, {**plain_environment(), **variables})


def preloaded(command: list[str], limit: str | None = "4G", **variables: str) -> Program:
    """Starts a program under a plain preload, with GPULIMIT_MAX unless `limit` is None."""
    environment = {**plain_environment(), "LD_PRELOAD": str(library()), **variables}
    if limit is not None:
        environment["GPULIMIT_MAX"] = limit
    return Program(command, environment)


def started(outcome: Outcome, program: Program) -> int:
    """Waits for a program of plain driver calls, and has it make a context. Returns the pid of the
    program, which is not that of its parent.
    """
    pid = program.reply(30)["ready"]
    outcome.expect(program.ask("start").get("status") == 0, f"no context: {program.tail()}")
    return pid


def bare(command: list[str], **variables: str) -> Program:
    """Starts a program without gpulimit."""
    return Program(command, {**plain_environment(), **variables})


def gpulimit(*arguments: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """Runs the controller and returns its output."""
    command = [str(binary("gpulimit")), *arguments]
    return subprocess.run(
        command, env=plain_environment(), capture_output=True, text=True, timeout=timeout
    )


PARTS = ("allocations", "pools", "managed", "driver", "total")


def usage_by_pid(gpu: int) -> dict[int, dict[str, int]]:
    """Returns the figures of `gpulimit ps --json` for each process on a GPU, in bytes by part;
    `seen` is the figure that NVML should show for the process.
    """
    answer = gpulimit("ps", "--json")
    if answer.returncode:
        raise RuntimeError(
            f"gpulimit ps --json ended with {answer.returncode}: {answer.stderr.strip()[-300:]}"
        )
    return usage_of(json.loads(answer.stdout)["processes"], gpu)


def usage_of(processes: list[dict], gpu: int) -> dict[int, dict[str, int]]:
    """Selects the lines of `gpulimit ps --json` for the GPU with this NVML index: a process has one
    line for every GPU that it uses.
    """
    held: dict[int, dict[str, int]] = {}
    for process in processes:
        if not process["gpu"] or process["gpu"]["index"] != gpu:
            continue
        parts = {part: process[part] or 0 for part in PARTS}
        # NVML's figure of a process never includes managed memory.
        held[process["pid"]] = parts | {"seen": parts["total"] - parts["managed"]}
    return held


# ---- judging


@contextmanager
def judged(outcome: Outcome, cap: int, label: str = "", gpu: int | None = None) -> Iterator[Judge]:
    """Samples while the block runs; afterwards the sum of the session's processes must never have
    passed `cap`.

    `gpu` is an NVML index, by default that of the GPU under test.
    """
    with Judge(gpu_index() if gpu is None else gpu) as judge:
        yield judge
        verdict(outcome, judge.read(), cap, label)


def verdict(outcome: Outcome, seen: dict, cap: int, label: str = "") -> None:
    """Compares a judge's report with a limit, and keeps the evidence."""
    evidence = (
        "sum_peak",
        "samples",
        "failed_samples",
        "interval_mean_ms",
        "gap_max_ms",
        "gaps_over_5_ms",
    )
    outcome.figures[f"nvml{'_' + label if label else ''}"] = {k: seen[k] for k in evidence} | {
        "cap": cap
    }
    over = seen["sum_peak"] - cap
    outcome.expect(
        over <= 0,
        f"{label + ': ' if label else ''}NVML showed {mib(seen['sum_peak'])}, {mib(over)} over"
        " the cap",
    )
    outcome.expect(seen["samples"] > 0, "the judge took no sample")


def differences_at_rest(outcome: Outcome, judge: Judge, label: str) -> dict[int, int]:
    """Returns by how many bytes gpulimit's figure of each process exceeds NVML's, by pid, once the
    usage stands still.
    """
    seen = {int(pid): used for pid, used in judge.settled()["last"].items()}
    parts = usage_by_pid(judge.index)
    ours = {pid: parts[pid]["seen"] if pid in parts else 0 for pid in seen}
    differences = {pid: ours[pid] - used for pid, used in seen.items()}
    worst = max(differences.values(), key=abs, default=0)
    outcome.figures.setdefault("at_rest", {})[label] = {
        "nvml": sum(seen.values()),
        "ours": sum(ours.values()),
        "worst_difference": worst,
        "parts": [parts.get(pid) for pid in seen],
    }
    outcome.expect(seen, f"{label}: NVML lists none of the check's processes")
    return differences


def compare_at_rest(outcome: Outcome, judge: Judge, label: str) -> int:
    """Asserts that gpulimit's figure equals NVML's for each process, once the usage stands still.
    Returns the largest difference, in bytes.
    """
    worst = max(differences_at_rest(outcome, judge, label).values(), key=abs, default=0)
    outcome.expect(
        abs(worst) <= EXACT, f"{label}: gpulimit's figure is {worst / MIB:+.2f} MiB off NVML's"
    )
    return worst


def reached(outcome: Outcome, seen: dict, cap: int) -> None:
    """Asserts that a fill came near its limit; otherwise gpulimit refuses too early."""
    short = cap - seen["sum_peak"]
    outcome.figures["short_of_cap"] = short
    outcome.key.append(f"peak {mib(seen['sum_peak'])}, {mib(short)} short")
    outcome.expect(short <= SLACK, f"refused {mib(short)} before the cap")


def run_check(entry: Check) -> dict:
    """Runs one check in this process and returns its record."""
    outcome, start = Outcome(), time.monotonic()
    try:
        lacking = missing(entry.needs)
        if lacking:
            raise Skip(f"not installed: {', '.join(lacking)}")
        entry.function(outcome)
    except Skip as reason:
        return {
            "verdict": "skip",
            "reason": str(reason),
            "figures": outcome.figures,
            "key": [str(reason)],
        }
    except Exception as error:  # an exception fails the check, whose figures so far are kept
        outcome.failures.append(f"{type(error).__name__}: {error}")
    return {
        "verdict": "fail" if outcome.failures else "pass",
        "failures": outcome.failures,
        "figures": outcome.figures,
        "key": outcome.key,
        "seconds": round(time.monotonic() - start, 2),
    }
