"""Runs programs in Python on a simulated machine: with the library, a stand-in for it, or neither.

`GPULIMIT_TEST_LIBRARY` and `GPULIMIT_TEST_CONTROLLER` name the builds (scripts/python-tests), and
`GPULIMIT_TEST_PYTHON` another interpreter for the programs.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "python"))

import support  # noqa: E402
from support import CONTROLLER, DRIVER, PATIENCE, REPOSITORY, TARGET, clean  # noqa: E402

MODULE = REPOSITORY / "python"
LIBRARY = os.environ["GPULIMIT_TEST_LIBRARY"]
PYTHON = os.environ.get("GPULIMIT_TEST_PYTHON") or sys.executable
MIB = 1 << 20

# A test run in the background ignores Ctrl-C, and the programs would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

HEAD = f"""
PATIENCE = {PATIENCE}
""" + """
import ctypes, gpulimit, os, signal, sys, threading, time
stand_in = ctypes.CDLL(None)

def until(what):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "never came"
        time.sleep(0.005)

def ask(size, device=0):
    stand_in.stand_in_ask(ctypes.c_uint64(size), device)

def answer(size, device=0):
    # Asks, and waits until all functions have been called, of which this is the last.
    done = []
    def last(size, device):
        done.append(size)
    gpulimit.on_pressure(last)
    ask(size, device)
    until(lambda: done)
    gpulimit.off_pressure(last)

def is_calling():
    # Returns whether a call has begun that has not ended.
    from gpulimit import _pressure
    return not _pressure._waiter.idle.is_set()
"""


class Case(support.Case):
    """A test with a folder, a simulated machine and a group root of its own."""

    def setUp(self):
        self.folder = self.scratch()
        self.environment = {
            **clean(),
            "GPULIMIT_ROOT": str(self.folder / "root"),
            "GPULIMIT_SIM_STATE": str(self.own(support.in_memory()) / "machine"),
            "GPULIMIT_SIM_KILL_LAG_MS": "0",
            "GPULIMIT_LIBRARY": LIBRARY,
            "PATH": f"{CONTROLLER.parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{MODULE}:{HERE / 'fakes'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            # From 3.12 on Python warns of forks in programs with threads.
            "PYTHONWARNINGS": "ignore::DeprecationWarning",
        }

    def on_driver(self, **knobs):
        """Gives the machine a simulated driver."""
        self.environment["LD_LIBRARY_PATH"] = str(DRIVER)
        for name, value in knobs.items():
            self.environment[f"GPULIMIT_SIM_{name.upper()}"] = str(value)

    def gpulimit(self, *arguments, status=0):
        """Runs the controller and returns what it prints."""
        command = [CONTROLLER, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout

    def until_empty(self, group):
        """Waits until the driver has freed what the group's processes had."""
        processes = lambda: json.loads(self.gpulimit("ps", group, "--json"))["processes"]
        support.eventually("the group's processes are gone", lambda: not processes())

    def start(self, code, preload=None, python=PYTHON, **variables):
        """Starts a program in Python."""
        environment = {**self.environment, **variables}
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        process = subprocess.Popen(
            [python, "-c", HEAD + textwrap.dedent(code)],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Its children can be ended with it. They hold its pipes open.
            start_new_session=True,
        )
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        """Ends a program that a failed test has left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def finish(self, process, status=0):
        """Waits for a program's end and returns what it has printed."""
        try:
            out, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            self.fail(f"no end: {out}\n{errors}")
        self.assertEqual(process.returncode, status, f"{out}\n{errors}")
        return out, errors

    def run_python(self, code, status=0, **options):
        """Runs a program in Python and returns its standard output and standard error."""
        return self.finish(self.start(code, **options), status)

    def says(self, code, expected, **options):
        """Runs a program that must print this, and nothing on standard error."""
        out, errors = self.run_python(code, **options)
        self.assertEqual((out, errors), (textwrap.dedent(expected), ""))


def stand_in():
    """Builds the stand-in for the library, once for each test run."""
    built = TARGET / "tmp" / "stand-in.so"
    source = HERE / "stand_in.c"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        built.parent.mkdir(parents=True, exist_ok=True)
        # Several runs may build it at once.
        _, new = tempfile.mkstemp(prefix="stand-in.", dir=built.parent)
        options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
        subprocess.run(["cc", *options, str(source), "-o", new], check=True)
        os.replace(new, built)
    return built


def with_interface(test):
    """Leaves out a test if the library has no C interface."""

    @functools.wraps(test)
    def wrapped(self):
        if not has_interface():
            self.skipTest("the library has no C interface")
        test(self)

    return wrapped


def has_interface():
    """Returns whether the library has the functions of gpulimit.h."""
    names = subprocess.run(["nm", "-D", LIBRARY], capture_output=True, text=True).stdout
    return " T gpulimit_pressure_wait" in names
