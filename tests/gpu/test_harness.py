"""Tests of the checks' own support code, without a GPU: python3 -m unittest discover tests/gpu"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "work"), str(HERE.parent / "support" / "python")]

import agent  # noqa: E402
import checks  # noqa: E402, F401
import harness  # noqa: E402
import report  # noqa: E402
import suites  # noqa: E402
from checks.refusal import LINE  # noqa: E402
from harness import CHECKS, MIB, Check, Outcome, Program, Skip  # noqa: E402
from judge import Tally, session_of, unhooked  # noqa: E402
from ratios import compared, orders, ratios, take_turns  # noqa: E402
from support import PATIENCE, Case, eventually  # noqa: E402


class Judging(Case):
    """The tally behind the judge."""

    def setUp(self) -> None:
        self.own, self.tally = os.getpid(), Tally(os.getsid(0))

    def test_peaks_and_last_values_of_the_session_only(self) -> None:
        # Process 1 cannot be the stranger, since in a container it may have made this session.
        stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            for at, held in enumerate(
                ({self.own: 5}, {self.own: 9, stranger.pid: 100}, {self.own: 3, stranger.pid: 50})
            ):
                self.tally.sample(held, at * 2.0)
        finally:
            stranger.kill()
            stranger.wait()
        seen = self.tally.report()
        self.assertEqual((seen["sum_peak"], seen["sum_last"]), (9, 3))
        self.assertEqual(seen["peak"], {str(self.own): 9})
        self.assertEqual(seen["others"], {str(stranger.pid): 100})

    def test_a_process_whose_name_is_not_text_has_a_session(self) -> None:
        child = os.fork()
        if child == 0:
            Path("/proc/self/comm").write_bytes(b"\xff) T (")
            signal.pause()
        try:
            name = Path(f"/proc/{child}/comm")
            eventually("the child has its name", lambda: b"\xff" in name.read_bytes())
            self.assertEqual(session_of(child), os.getsid(0))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)

    def test_the_sum_is_of_one_moment(self) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            self.tally.sample({self.own: 10, child: 1}, 0.0)
            self.tally.sample({self.own: 1, child: 10}, 2.0)
            self.assertEqual(self.tally.report()["sum_peak"], 11)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
        # A dead process counts as long as the driver lists it.
        self.tally.sample({child: 10}, 4.0)
        self.assertEqual(self.tally.report()["sum_last"], 10)
        self.tally.sample({}, 6.0)
        self.tally.sample({child: 10}, 8.0)
        self.assertEqual(
            self.tally.report()["sum_last"], 0, "a pid that came back is another process"
        )

    def test_gaps_are_evidence(self) -> None:
        for now in (0.0, 2.0, 9.0, 11.0):
            self.tally.sample({}, now)
        seen = self.tally.report()
        self.assertEqual((seen["gap_max_ms"], seen["gaps_over_5_ms"], seen["samples"]), (7.0, 1, 4))
        self.tally.reset()
        self.tally.sample({}, 100.0)
        self.assertEqual(self.tally.report()["gap_max_ms"], 0)

    def test_session_of_a_process(self) -> None:
        self.assertEqual(session_of(os.getpid()), os.getsid(0))
        self.assertIsNone(session_of(2**22 + 1))

    def test_a_process_has_a_line_for_each_gpu(self) -> None:
        def line(pid: int, gpu: dict | None, total: int, managed: int = 0) -> dict:
            return {
                "pid": pid,
                "gpu": gpu,
                "allocations": total,
                "pools": None,
                "managed": managed,
                "driver": 0,
                "total": total,
            }

        lines = [
            line(7, {"index": 0}, 100, 30),
            line(7, {"index": 1}, 5),
            line(8, None, 0),
            line(9, {"index": 1}, 6),
        ]
        seen = [
            {pid: parts["seen"] for pid, parts in harness.usage_of(lines, gpu).items()}
            for gpu in (0, 1, 2)
        ]
        self.assertEqual(seen, [{7: 70}, {7: 5, 9: 6}, {}])

    def test_the_judge_is_unhooked(self) -> None:
        kept = {"PATH": "/bin", "GPULIMIT_ROOT": "/r", "GPULIMIT_SIM_STATE": "/s"}
        limits = {
            "LD_PRELOAD": "x",
            "GPULIMIT_MAX": "4G",
            "GPULIMIT_GROUP": "g",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "1G",
        }
        self.assertEqual(unhooked(kept | limits), kept)


class Filling(Case):
    """The fill that every framework's agent uses."""

    def test_ends_close_to_the_limit(self) -> None:
        limit, taken = 4096 * MIB, []

        def allocate(size: int) -> int:
            if sum(taken) + size > limit:
                raise MemoryError("no more")
            taken.append(size)
            return size

        found = agent.fill(allocate, 1, 300 * MIB)
        self.assertEqual(found["bytes"], sum(taken))
        self.assertLess(limit - found["bytes"], MIB)
        self.assertEqual((found["exception"], found["text"]), ("builtins.MemoryError", "no more"))

    def test_sizes_are_odd_bounded_and_repeatable(self) -> None:
        first = [size for size, _ in zip(agent.sizes(7, 300 * MIB), range(500))]
        again = [size for size, _ in zip(agent.sizes(7, 300 * MIB), range(500))]
        self.assertEqual(first, again)
        self.assertTrue(all(size % 2 and MIB <= size <= 300 * MIB + 1 for size in first))
        self.assertGreater(len(set(first)), 490)


class Running(Case):
    """Checks, programs and records."""

    def run_one(self, function) -> dict:
        return harness.run_check(Check("x", "x", function, 1, (), "main"))

    def test_verdicts(self) -> None:
        def skips(_: Outcome) -> None:
            raise Skip("no nvcc")

        def breaks(outcome: Outcome) -> None:
            outcome.figures["known"] = 1
            raise ValueError("broken")

        self.assertEqual(self.run_one(lambda outcome: None)["verdict"], "pass")
        self.assertEqual(
            self.run_one(lambda outcome: outcome.expect(False, "no"))["failures"], ["no"]
        )
        self.assertEqual(self.run_one(skips)["verdict"], "skip")
        broken = self.run_one(breaks)
        self.assertEqual(
            (broken["verdict"], broken["failures"], broken["figures"]),
            ("fail", ["ValueError: broken"], {"known": 1}),
        )

    def test_an_agent_answers(self) -> None:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import agent; print('noise');"
            " agent.serve({'half': lambda n: {'n': n // 2}, 'bad': lambda: 1 / 0})"
        )
        program = Program([sys.executable, "-c", code, str(HERE / "work")])
        self.assertIn("ready", program.reply(PATIENCE))
        self.assertEqual(program.ask("half", n=8), {"n": 4})
        self.assertEqual(program.ask("bad")["error"], "builtins.ZeroDivisionError")
        program.say("quit", status=42)
        self.assertEqual(program.finish(), 42)
        self.assertEqual(program.lines, ["noise"])

    def test_a_program_that_ends_early_is_an_error_not_a_hang(self) -> None:
        program = Program(
            [sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"]
        )
        with self.assertRaisesRegex(RuntimeError, "ended with 3"):
            program.reply(PATIENCE)
        program.finish()

    def test_the_record_is_complete_after_each_check(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            report.write(path, {"driver": "580"}, [{"name": "a", "verdict": "pass"}])
            self.assertEqual(json.loads(path.read_text())["checks"][0]["name"], "a")
            self.assertEqual(os.listdir(folder), ["record.json"])
        self.assertIn("- why", report.row({"name": "a", "verdict": "fail", "failures": ["why"]}))

    def test_every_check_says_what_it_is(self) -> None:
        for name, entry in CHECKS.items():
            self.assertTrue(entry.subject.endswith("."), name)
        self.assertLess(max(len(name) for name in CHECKS), 24)


class Ratios(Case):
    """Times of programs that take turns."""

    def test_each_runs_in_each_place_as_often(self) -> None:
        seen = list(orders({"a": 1, "b": 2, "c": 3}, 7))
        self.assertEqual(
            seen[:3], [(0, ["a", "b", "c"]), (1, ["c", "b", "a"]), (2, ["b", "c", "a"])]
        )
        self.assertEqual(seen[6][1], seen[0][1])
        for place in range(3):
            self.assertEqual(
                sorted(order[place] for _, order in seen[:6]), ["a", "a", "b", "b", "c", "c"]
            )

    def test_the_first_turn_warms_up(self) -> None:
        run = []
        times = take_turns(("a", "b"), 3, lambda way: run.append(way) or float(len(run)))
        self.assertEqual("".join(run), "abbabaab")
        self.assertEqual(times, {"a": [4.0, 6.0, 7.0], "b": [3.0, 5.0, 8.0]})

    def test_a_second_bare_program_stands_beside_it(self) -> None:
        found = compared([3.0, 3.0], [2.0, 2.0], [1.0, 1.0])
        self.assertEqual(
            found,
            {
                "ratio": 1.5,
                "quartiles": [1.5, 1.5],
                "bare_ratio": 0.5,
                "bare_quartiles": [0.5, 0.5],
            },
        )

    def test_turns_are_compared_one_by_one(self) -> None:
        # The machine was half as fast in the second half of the turns.
        others = [10.0] * 4 + [20.0] * 4
        self.assertEqual(
            ratios([11.0, 10.0, 10.0, 10.0, 20.0, 20.0, 22.0, 22.0], others), (1.0, [1.0, 1.1])
        )
        self.assertEqual(ratios(others, others), (1.0, [1.0, 1.0]))
        self.assertEqual(ratios([30.0, 20.0, 15.0], [10.0, 10.0, 10.0]), (2.0, [1.5, 3.0]))
        with self.assertRaises(ValueError):
            ratios([1.0], [1.0, 2.0])


class Refusal(Case):
    """The pattern that a refusal must match."""

    def test_the_line_as_documented(self) -> None:
        line = (
            "gpulimit: refused cuMemAlloc of 2.0 GiB on GPU 0 (GPU-1a2b…): 500.0 MiB left"
            " of 4.0 GiB in train; most is used by pid 4711 (python) 3.6 GiB."
            " `gpulimit why` explains it"
        )
        found = LINE.match(line)
        self.assertIsNotNone(found)
        self.assertEqual(
            (found["group"], found["call"], found["pid"], found["max"]),
            ("train", "cuMemAlloc", "4711", "4.0 GiB"),
        )
        self.assertIsNone(LINE.match(line.replace("pid 4711", "")))


class Suites(Case):
    """Tests of other projects, here with a stand-in for pytest and for gpulimit."""

    PYTEST = """
import os, sys
limited, words = "LIMITED" in os.environ, sys.argv
path = next(word for word in words if word.startswith("--junitxml=")).partition("=")[2]
odd = "flaky" in words and not os.path.exists("seen")
open("seen", "w").close()
if "crash" in words and limited:
    os.abort()
if "broken" in words:
    sys.exit(2)
tests = {"holds": "", "known": "<failure/>", "left_out": "<skipped/>"}
tests["differs"] = "<failure/>" if ("differ" in words and limited) or odd else ""
cases = [f'<testcase classname="a" name="{name}">{part}</testcase>' for name, part in tests.items()]
open(path, "w").write("<testsuites>" + "".join(cases) + "</testsuites>")
sys.exit(1)
"""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "pytest.py").write_text(self.PYTEST)
        limiter = self.folder / "gpulimit"
        limiter.write_text('#!/bin/sh\nshift 4\nLIMITED=1 exec "$@"\n')
        limiter.chmod(0o755)
        self.enterContext(unittest.mock.patch.object(suites, "binary", lambda _: limiter))

    def judge(self, *words: str) -> dict:
        return suites.judge(["pytest", *words], self.folder, self.folder)

    def test_equal_outcomes_pass_whatever_they_are(self) -> None:
        record = self.judge("equal")
        self.assertEqual((record["verdict"], record["failures"]), ("pass", []))
        expected = {"a.holds": "passed", "a.known": "failure", "a.left_out": suites.KINDS[-1]}
        self.assertEqual(
            record["outcomes"], {**expected, "a.differs": "passed", "the program": "status 1"}
        )

    def test_a_difference_is_a_fault(self) -> None:
        record = self.judge("differ")
        self.assertEqual(record["verdict"], "fail")
        self.assertEqual(record["failures"], ["a.differs: bare passed, limited failure"])

    def test_a_crash_is_a_fault(self) -> None:
        failures = self.judge("crash")["failures"]
        self.assertIn("the program: bare status 1, limited status -6", failures)
        self.assertIn("a.holds: bare passed, limited -", failures)

    def test_what_differs_without_a_limit_proves_nothing(self) -> None:
        self.assertEqual(self.judge("flaky")["verdict"], "pass")

    def test_a_line_without_a_passed_test_is_a_fault(self) -> None:
        self.assertIn("no test passes without a limit", self.judge("broken")["failures"][0])

    def test_the_list_can_be_read(self) -> None:
        listed = suites.lines((HERE / "suites.txt").read_text())
        self.assertEqual({words[0] for words in listed}, {"pytest", "unittest", "sample"})
        self.assertIn("numba.cuda.tests.cudadrv.test_emm_plugins", sum(listed, []))
        plain = suites.command(["unittest", "one.two"], self.folder, self.folder)
        self.assertEqual(plain[-1], "one.two")
        files = suites.command(["pytest", "py*.py"], self.folder, self.folder)
        self.assertEqual(files[-1], str(self.folder / "pytest.py"))


if __name__ == "__main__":
    unittest.main()
