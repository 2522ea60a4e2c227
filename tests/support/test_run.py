"""Tests of scripts/test itself: its figures, the steps that it leaves out, what it finds left."""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts/test"
loader = importlib.machinery.SourceFileLoader("scripts_test", str(SCRIPT))
spec = importlib.util.spec_from_loader(loader.name, loader)
scripts_test = importlib.util.module_from_spec(spec)
sys.modules[loader.name] = scripts_test
loader.exec_module(scripts_test)
Step = scripts_test.Step
# Nothing here ends by itself.
scripts_test.GRACE = 0


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        self.run = scripts_test.Run(argparse.Namespace(strict=True, seed=1))
        self.addCleanup(self.run.close)
        self.said = io.StringIO()
        quiet = contextlib.redirect_stdout(self.said)
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def shell(self, name: str, script: str, slots: int = 1, **more: object) -> Step:
        return Step(name, ["sh", "-c", script], slots, **more)

    def test_counts_each_kind_of_summary(self) -> None:
        count = scripts_test.count
        self.assertEqual(count("test result: ok. 3 passed; 1 failed; 2 ignored\n"), (3, 1))
        self.assertEqual(
            count("     Summary [ 1.2s] 5 tests run: 4 passed (1 slow), 1 failed\n"), (4, 1)
        )
        self.assertEqual(count("     Summary [ 1.2s] 5 tests run: 4 passed, 1 timed out\n"), (4, 1))
        self.assertEqual(
            count("Ran 7 tests in 1s\n\nFAILED (failures=1, errors=2, skipped=1)\n"), (4, 3)
        )
        self.assertEqual(count("184 passed, 2 failed: a hook passes if\n"), (184, 2))
        self.assertEqual(count("nothing\n"), (0, 0))

    def test_a_failed_step_ends_the_run_and_what_runs_beside_it(self) -> None:
        steps = [
            self.shell("beside", "sleep 1000", 0),
            self.shell("bad", "echo why; exit 3"),
            self.shell("never", "true", after=("beside",)),
        ]
        self.assertFalse(self.run.work(steps))
        self.run.stop()
        self.assertIsNotNone(steps[0].process.poll())
        self.assertIsNone(steps[2].process)
        self.assertEqual((self.run.passed, self.run.failed), (0, 1))
        self.assertIn("why", self.said.getvalue())

    def test_a_step_starts_after_those_that_it_names(self) -> None:
        note = self.run.place / "note"
        steps = [
            self.shell("slow", f"sleep 0.2; echo slow >>{note}", 0),
            self.shell("next", f"echo next >>{note}", after=("slow",)),
        ]
        self.assertTrue(self.run.work(steps))
        self.assertEqual(note.read_text(), "slow\nnext\n")

    def test_a_process_that_a_step_leaves_is_found_named_and_ended(self) -> None:
        script = "setsid sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done"
        self.assertTrue(self.run.work([self.shell("a/careless step", script)]))
        left = self.run.leftovers()
        self.assertEqual(len(left), 1, left)
        self.assertRegex(left[0], r"^a/careless step: process \d+: sleep 1000")
        # A process that was killed is there until it has let go of its memory.
        until = time.monotonic() + 120
        while scripts_test.marked(self.run.place) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(self.run.leftovers(), [])

    def test_files_that_a_step_leaves_are_found(self) -> None:
        script = f'touch "$TMPDIR/mine"; touch {self.run.memory}/shared'
        self.assertTrue(self.run.work([self.shell("careless", script)]))
        left = self.run.leftovers()
        self.assertEqual(left, ["careless: file mine", f"file {self.run.memory}/shared"])

    def test_users_that_a_step_leaves_are_found(self) -> None:
        before = scripts_test.shared_state()
        read = Path.read_text
        new = lambda path: read(path) + "eve:x:1:1\ngpulimit-test:x:2:2\n"  # noqa: E731
        with mock.patch.object(Path, "read_text", new):
            after = scripts_test.shared_state()
        # Others may add a user meanwhile.
        self.assertEqual(after - before, {"gpulimit-test:x:2:2"})

    def test_a_default_root_that_a_step_leaves_is_found(self) -> None:
        root = Path("/dev/shm/gpulimit-4294967294")
        self.addCleanup(root.rmdir)
        root.mkdir()
        self.assertEqual(self.run.leftovers(), [f"{root} on this machine"])

    def test_a_skip_that_is_not_listed_fails_in_a_strict_run(self) -> None:
        self.assertTrue(
            self.run.work([self.shell("userlands", "echo 'userlands: skipped x, gone'")])
        )
        self.run.skips()
        self.assertEqual(self.run.failed, 1)
        self.assertIn("userlands: x, gone (not in tests/skips.txt)", self.said.getvalue())

    def test_a_step_is_left_out_only_if_its_files_are_the_same(self) -> None:
        step = self.shell("models", "true", guards=("crates/ledger",))
        mark = step.fingerprint()
        self.assertRegex(mark, "^[0-9a-f]{32}$")
        new = scripts_test.ROOT / "crates/ledger/src/new_file_of_a_test.rs"
        self.addCleanup(new.unlink, missing_ok=True)
        new.write_text("// A file that git does not know yet.\n")
        self.assertNotEqual(step.fingerprint(), mark)
        new.unlink()
        self.assertEqual(step.fingerprint(), mark)
        nothing = self.shell("models", "true", guards=("no/such/folder",))
        self.assertEqual(nothing.fingerprint(), "")

    def test_quick_asks_cargo_what_depends_on_a_change(self) -> None:
        dependent = scripts_test.dependent
        self.assertEqual(dependent(["src/verbs/ps.rs"]), ["gpulimit"])
        self.assertEqual(dependent(["docs/faq.md"]), [])
        self.assertIn("gpulimit-programs", dependent(["shim/src/hook.rs"]))
        of_ledger = dependent(["crates/ledger/src/lib.rs"])
        self.assertLess({"gpulimit-ledger", "gpulimit-group", "gpulimit-shim"}, set(of_ledger))
        self.assertNotIn("gpulimit-fatbin", of_ledger)


class Processes(unittest.TestCase):
    """Whole runs whose only step never ends by itself."""

    def setUp(self) -> None:
        self.target = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.target)

    def start(self) -> subprocess.Popen:
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import test_run;"
            "module = test_run.scripts_test;"
            "module.prepare = lambda *_: None;"
            "command = ['sh', '-c', 'setsid sleep 1000 & wait'];"
            "module.whole = lambda _: [module.Step('long', command)];"
            "sys.argv[1:] = []; sys.exit(module.main())"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CARGO_TARGET_DIR": self.target},
        )
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def interrupt(self, child: subprocess.Popen) -> str:
        """Send SIGINT when the step runs, and return what the run says then."""
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        until = time.monotonic() + 120
        while not children.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate()
        self.assertEqual(child.returncode, 1, said)
        return said

    def test_ctrl_c_ends_all_that_runs(self) -> None:
        child = self.start()
        self.assertIn("seed", child.stdout.readline())
        said = self.interrupt(child)
        self.assertIn("interrupted", said)
        self.assertTrue(said.endswith("0 passed, 1 failed\n"), said)

    def test_a_second_run_waits_for_the_first(self) -> None:
        first = self.start()
        self.assertIn("seed", first.stdout.readline())
        second = self.start()
        self.assertIn("waiting for another run", second.stdout.readline())
        self.assertIsNone(first.poll())
        self.interrupt(first)
        self.assertIn("seed", second.stdout.readline())
        self.interrupt(second)

    def test_a_run_ends_what_a_killed_one_has_left(self) -> None:
        first = self.start()
        self.assertIn("seed", first.stdout.readline())
        place = Path(self.target, "scripts-test.lock").read_text()
        until = time.monotonic() + 120
        while len(scripts_test.marked(place)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        first.kill()
        first.wait()
        self.assertNotEqual(scripts_test.marked(place), {})
        second = self.start()
        self.assertIn(place, second.stdout.readline())
        self.assertIn("seed", second.stdout.readline())
        self.assertEqual((scripts_test.marked(place), Path(place).exists()), ({}, False))
        self.interrupt(second)


if __name__ == "__main__":
    unittest.main()
