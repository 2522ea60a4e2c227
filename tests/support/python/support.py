"""What the tests in Python share: places, environments, patience and skips.

The variables are those of `tests/support/src/lib.rs`, and mean the same here.
"""

import contextlib
import os
import random
import re
import shutil
import tempfile
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
CONTROLLER = Path(os.environ.get("GPULIMIT_TEST_CONTROLLER", TARGET / "debug" / "gpulimit"))
DRIVER = TARGET / "sim-driver"
PATIENCE = int(os.environ.get("GPULIMIT_TEST_PATIENCE", 120))
"""Seconds that a test waits for an event before it fails."""


def eventually(what, condition):
    """Waits until a condition holds. Fails when the patience is over."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.005)


def clean():
    """Returns the environment without what gpulimit and the CUDA driver read."""
    read = re.compile(r"GPULIMIT_(?!TEST_)|CUDA_|(LD_(PRELOAD|LIBRARY_PATH)|LISTEN_\w+)$")
    return {name: value for name, value in os.environ.items() if not read.match(name)}


def unique(folder, prefix):
    """Makes a folder that others may read, with a name that begins with the prefix and is unique.
    No word and no figure can be in the rest of it: an assertion on a text in which the path stands
    finds only what the program has said."""
    while True:
        path = Path(folder) / (prefix + "".join(random.choices("jkqvwxyz", k=8)))
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o755)
            return path


def in_memory():
    """Makes an empty folder in memory, where files of simulated machines are."""
    run = os.environ.get("GPULIMIT_TEST_RUN", "")
    return unique(Path("/dev/shm") / Path(run).name, "gpulimit-test-")


def note(test, why):
    """Says that a test, by its name, or a part of it, is left out, and why."""
    print(f"SKIPPED: {test}: {why}", flush=True)
    if "GPULIMIT_TEST_RUN" in os.environ:
        # One write, so that lines of several tests do not mix.
        notes = Path(os.environ["GPULIMIT_TEST_RUN"]) / "skips"
        with open(notes, "ab", buffering=0) as file:
            file.write(f"{test}: {why}\n".encode())


def skip(test, why):
    """Leaves out a test, or the rest of it, as `note` says."""
    note(test, why)
    raise unittest.SkipTest(why)


class Place:
    """A folder that the run looks at, and the name of the test, for this process and all that it
    starts until the end. Without a run, nothing."""

    def __init__(self, test):
        self.before = dict(os.environ)
        run = os.environ.get("GPULIMIT_TEST_RUN")
        if run:
            place = str(unique(run, ""))
            # As /tmp, for programs of other users.
            os.chmod(place, 0o1777)
            Path(f"{place}.name").write_text(test)
            os.environ.update(GPULIMIT_TEST_NAME=test, TMPDIR=place)
            tempfile.tempdir = None

    def leave(self):
        os.environ.clear()
        os.environ.update(self.before)
        tempfile.tempdir = None


class Case(unittest.TestCase):
    """A test with a place of its own."""

    def run(self, result=None):
        place = Place(self.id())
        try:
            return super().run(result)
        finally:
            place.leave()

    def skipTest(self, reason):
        skip(self.id(), reason)

    def scratch(self):
        """Makes a folder, which is removed after the test."""
        return self.own(unique(tempfile.gettempdir(), "gpulimit-test-"))

    def own(self, folder):
        """Removes a folder after the test."""
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder
