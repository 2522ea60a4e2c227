"""`gpulimit run --explain` notes what PyTorch held, and changes nothing else for programs."""

import json
import subprocess
import textwrap

from rig import CONTROLLER, MIB, PYTHON, Case

REFUSED = """
    import torch
    kept = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        print("refused")
"""


ASKS = """
    import ctypes
    cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(word), 0) == 0
    assert cuda.cuCtxSetCurrent(word) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(word), ctypes.c_size_t(3 << 30)) == 2
"""


class Explain(Case):
    def setUp(self):
        super().setUp()
        self.on_driver()

    def explained(self, code, *options, **variables):
        """Runs a program below a limit of 2 GiB, and returns its output and the notes."""
        command = [CONTROLLER, "run", "--explain", "--max", "2G", "--", PYTHON, *options, "-c"]
        done = subprocess.run(
            [*command, textwrap.dedent(code)],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        notes = sorted((self.folder / "root").glob(".explained-*"))
        for note in notes:
            self.assertEqual(note.stat().st_mode & 0o777, 0o600)
        return done.stdout, done.stderr, [json.loads(note.read_text()) for note in notes]

    def test_what_pytorch_held_is_noted_at_a_refusal(self):
        out, _, [note] = self.explained(REFUSED)
        self.assertEqual(out, "refused\n")
        self.assertEqual(note["asked"], 3 << 30)
        self.assertEqual(note["reserved"], 100 * MIB)
        self.assertEqual(note["allocated"], 100 * MIB)
        self.assertEqual((note["largest_free"], note["expandable"]), (0, False))
        said = json.loads(self.gpulimit("why", "--json"))["now"]["pytorch"]
        self.assertEqual(said, {key: note[key] for key in said})
        line = "PyTorch had reserved 100.0 MiB and used 100.0 MiB of it"
        self.assertIn(line, self.gpulimit("why"))
        self.assertEqual(
            set(note) - {"pid", "time_ms"},
            {"asked", "reserved", "allocated", "largest_free", "expandable", "batch"},
        )

    def test_the_last_measurement_of_find_batch_is_noted(self):
        measured = "import torch\ntorch._gpulimit_batch = [32, 64 << 20, 2 << 20]\n"
        _, _, [note] = self.explained(measured + textwrap.dedent(REFUSED))
        self.assertEqual(note["batch"], [32, 64 * MIB, 2 * MIB])
        self.assertIn("by what `find_batch` measured", self.gpulimit("why"))

    def test_a_program_sees_no_difference(self):
        code = "import sys; print(sys.path, 'torch' in sys.modules)"
        plain = self.run_python(code)[0]
        self.assertEqual(self.explained(code)[:2], (plain, ""))

    def test_the_hidden_sitecustomize_runs_and_children_are_explained(self):
        hidden = self.folder / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text("VALUE = 7\nprint('hidden', __file__[-23:])\n")
        path = f"{hidden}:{self.environment['PYTHONPATH']}"
        code = f"""
            import subprocess, sys, sitecustomize
            print(sitecustomize.VALUE, flush=True)
            subprocess.run([sys.executable, "-c", {textwrap.dedent(REFUSED)!r}], check=True)
        """
        out, errors, notes = self.explained(code, PYTHONPATH=path)
        line = "hidden hidden/sitecustomize.py"
        self.assertEqual(out.splitlines(), [line, "7", line, "refused"], errors)
        self.assertEqual(len(notes), 1)
        (hidden / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
        out, errors, _ = self.explained("print(1)", PYTHONPATH=path)
        self.assertEqual(out, "1\n")
        self.assertIn("ValueError: theirs", errors)

    def test_isolated_interpreters_are_left_alone(self):
        for option in ("-I", "-E", "-S"):
            out, errors, notes = self.explained("import sys; print(len(sys.path) > 0)", option)
            self.assertEqual((out, errors, notes), ("True\n", "", []))
            self.explained(ASKS, option)
            self.assertIn("PyTorch noted nothing: --explain does nothing", self.gpulimit("why"))
        self.explained(ASKS)
        self.assertNotIn("PyTorch noted nothing", self.gpulimit("why"))
        forked = "import os, sys\nif pid := os.fork(): sys.exit(os.waitpid(pid, 0)[1])\n"
        self.explained(forked + textwrap.dedent(ASKS))
        self.assertNotIn("PyTorch noted nothing", self.gpulimit("why"))

    def test_another_module_called_torch_is_left_alone(self):
        stub = self.folder / "stub"
        stub.mkdir()
        (stub / "torch.py").write_text("VALUE = 3\n")
        path = f"{stub}:{self.environment['PYTHONPATH']}"
        said = self.explained("import torch; print(torch.VALUE)", PYTHONPATH=path)
        self.assertEqual(said, ("3\n", "", []))

    def test_old_notes_go_and_others_keep_their_files(self):
        root = self.folder / "root"
        root.mkdir()
        for number in range(40):
            (root / f".explained-9{number:05}").write_text("{}")
        (root / ".other").write_text("")
        command = [CONTROLLER, "run", "--explain", "--max", "2G", "--", PYTHON, "-c"]
        subprocess.run(
            [*command, textwrap.dedent(REFUSED)],
            env=self.environment,
            capture_output=True,
            check=True,
        )
        self.assertEqual(len(list(root.glob(".explained-*"))), 16)
        self.assertTrue((root / ".other").exists())
