"""The module in every version of Python that is here, and its types."""

import ast
import functools
import glob
import os
import shutil
import subprocess
import unittest

import rig
from rig import MODULE, Case

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


@functools.cache
def interpreters():
    """Returns the interpreters in PATH and those of pyenv, by version."""
    found = {}
    home = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for version in VERSIONS:
        places = [shutil.which(f"python{version}")]
        places += glob.glob(f"{rig.REPOSITORY}/.cache/pythons/{version}/usr/bin/python3")
        places += sorted(glob.glob(f"{home}/versions/{version}.*/bin/python{version}"))
        for place in filter(None, places):
            # A shim of pyenv may be there without the interpreter.
            if subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
                found[version] = place
    return found


class Versions(Case):
    def test_the_source_is_valid_for_the_oldest_version(self):
        files = sorted((MODULE / "gpulimit").glob("*.py"))
        self.assertGreater(len(files), 5)
        for file in files:
            ast.parse(file.read_text(), str(file), feature_version=(3, 9))

    def test_every_version_that_is_here(self):
        code = """
        called = []
        @gpulimit.on_pressure
        def free(size, device):
            called.append((size, device))
        ask(5, 1)
        until(lambda: called)
        child = os.fork()
        if child == 0:
            gpulimit.on_pressure(free)
            sys.exit(threading.active_count())
        print(*called, os.waitpid(child, 0)[1] >> 8)
        with gpulimit.peak() as p:
            pass
        print(gpulimit.limit(), gpulimit.group(), p.bytes, gpulimit.torch, gpulimit.cupy)
        import gpulimit._report, gpulimit._program, gpulimit.__main__
        print(gpulimit._report.lines(0)[0])
        """
        found = interpreters()
        print(f"versions of Python: {', '.join(found)}")
        self.assertTrue(found)
        for version, python in found.items():
            with self.subTest(version=version):
                out, errors = self.run_python(code, preload=rig.stand_in(), python=python)
                lines = out.splitlines()
                self.assertEqual((lines[0], errors), ("(5, 1) 2", ""))
                self.assertTrue(lines[1].startswith("18446744073709551615 lab/alice 0 "), out)
                self.assertTrue(lines[2].startswith("Group lab/alice: no limit"), out)

    def test_a_sub_interpreter_ends(self):
        code = """
        if sys.version_info >= (3, 13):
            import _interpreters as interpreters
            inner = interpreters.create("legacy")
        else:
            import _xxsubinterpreters as interpreters
            inner = interpreters.create(isolated=False)
        failed = interpreters.run_string(inner, "import gpulimit; gpulimit.on_pressure(print)")
        print(failed, stand_in.stand_in_registered())
        interpreters.destroy(inner)
        print(stand_in.stand_in_registered())
        """
        # Before 3.12, sub-interpreters of this module have no threads.
        found = {name: python for name, python in interpreters().items() if int(name[2:]) > 11}
        for version, python in found.items():
            with self.subTest(version=version):
                self.says(code, "None 1\n0\n", preload=rig.stand_in(), python=python)

    def test_a_function_that_is_added_after_the_main_thread_has_ended(self):
        code = """
        def late():
            threading.main_thread().join()
            time.sleep(0.1)  # Python goes on to end. A shorter pause would only prove less.
            called = []
            gpulimit.on_pressure(lambda size, device: called.append(size))
            if stand_in.stand_in_registered():
                ask(1)
                until(lambda: called)
            print(called)
        threading.Thread(target=late).start()
        """
        for version, python in interpreters().items():
            with self.subTest(version=version):
                out, errors = self.run_python(code, preload=rig.stand_in(), python=python)
                # 3.12 starts no thread then. Some of its releases may.
                has_warned = "on_pressure has no effect: Python is ending" in errors
                self.assertEqual((out == "[]\n", errors != ""), (has_warned, has_warned), errors)

    def test_the_types_are_right(self):
        python = os.environ.get("GPULIMIT_TEST_MYPY")
        if not python:
            self.skipTest("no mypy: GPULIMIT_TEST_MYPY is not set")
        user = self.folder / "user.py"
        user.write_text(
            "import gpulimit\n"
            "with gpulimit.peak() as p:\n    total: int = p.bytes\n"
            "name: str = gpulimit.group() or ''\n"
            "@gpulimit.on_pressure\ndef free(size: int, device: object) -> None: ...\n"
            "gpulimit.torch.enable()\n"
            "best: int = gpulimit.torch.find_batch(lambda n: None)\n"
        )

        def check(path):
            # mypy knows no version before 3.10 any more.
            options = ["--strict", "--python-version", "3.10", "--cache-dir", self.folder / "cache"]
            done = subprocess.run(
                # Unlike bin/mypy, this also works after the checkout was moved.
                [python, "-m", "mypy", *options, path],
                env={**rig.clean(), "MYPYPATH": str(MODULE)},
                capture_output=True,
                text=True,
            )
            return done.stdout + done.stderr

        self.assertIn("Success", check(MODULE / "gpulimit"))
        self.assertIn("Success", check(user))
        user.write_text(user.read_text().replace("total: int", "total: str"))
        self.assertIn("Incompatible types in assignment", check(user))
        user.write_text("import gpulimit\ngpulimit.nonsense\n")
        self.assertIn('has no attribute "nonsense"', check(user))


class Program(Case):
    """`python -m gpulimit`"""

    def module(self, *arguments, status=0, **variables):
        command = [rig.PYTHON, "-m", "gpulimit", *arguments]
        done = subprocess.run(
            command,
            env={**self.environment, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def setUp(self):
        super().setUp()
        (self.folder / "train.py").write_text(
            "import os, sys\n"
            "print(sys.argv, sys.executable, os.environ['GPULIMIT_GROUP'] != '')\n"
            "sys.exit(int(sys.argv[2]))\n"
        )

    def test_runs_a_script_under_a_limit(self):
        self.on_driver()
        expected = f"['train.py', '--max', '3'] {os.path.realpath(rig.PYTHON)} True\n"
        for before in (["--max", "4G"], ["max=4G"], ["--max", "4G", "--stat"], ["--max=4G", "--"]):
            with self.subTest(before=before):
                done = self.module(*before, "train.py", "--max", "3", status=3)
                out = done.stdout.split(" ")
                self.assertEqual(out[:3], expected.split(" ")[:3])
                self.assertEqual(os.path.realpath(out[3]), expected.split(" ")[3])
        done = self.module("--max", "4G", "--", "-c", "import sys; print(sys.argv)", "a")
        self.assertEqual(done.stdout, "['-c', 'a']\n")
        done = self.module("-m", "4G", "-m", "train", "--max", "3", status=3)
        self.assertIn("/train.py', '--max', '3']", done.stdout)
        done = self.module("--max=4G", "-c", "import gpulimit; print(gpulimit.active())")
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_a_signal_ends_it_as_without(self):
        (self.folder / "dies.py").write_text("import os, signal; os.kill(os.getpid(), 15)\n")
        self.module("--max", "4G", "dies.py", status=-15)

    def test_runs_the_other_commands(self):
        self.assertIn("gpulimit 0.", self.module("--version").stdout)
        self.assertIn("Usage: gpulimit", self.module("--help").stdout)
        self.assertIn("Usage: gpulimit", self.module().stdout)
        # Python cannot run this folder as a script.
        (self.folder / "gc").mkdir()
        self.assertEqual(self.module("gc").stdout, "")
        self.assertIn("Usage: gpulimit oci-hook", self.module("oci-hook", "--help").stdout)
        self.assertIn("Usage: gpulimit run", self.module("--maxx", "4G", "a.py", status=2).stderr)

    def test_names_a_missing_program(self):
        done = self.module("--max", "4G", "train.py", status=125, PATH="/nowhere")
        self.assertIn("pip install --force-reinstall gpulimit-cap", done.stderr)


if __name__ == "__main__":
    unittest.main()
