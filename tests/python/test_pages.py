"""Every snippet of docs/python.md and docs/programs-that-share.md runs, and does what it says.

The frameworks are those of `fakes`; tests/gpu/checks/pressure.py runs the same snippets with the
real ones.
"""

import re
import subprocess

import rig
from rig import MIB, REPOSITORY, Case

HEADER = REPOSITORY / "include" / "gpulimit.h"


def snippets(page, language):
    """Returns the blocks of a page in a language."""
    text = (REPOSITORY / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Pages(Case):
    def setUp(self):
        super().setUp()
        self.on_driver()
        self.gpulimit("create", "lab", "max=3G")
        self.member = {"preload": rig.LIBRARY, "GPULIMIT_GROUP": "lab"}

    def test_every_snippet_runs_with_and_without_the_library(self):
        count = 0
        for page in ("python.md", "programs-that-share.md"):
            for code in snippets(page, "python"):
                for options in ({}, self.member):
                    with self.subTest(page=page, code=code, options=options):
                        self.assertEqual(self.run_python(code, **options)[1], "")
                count += 1
        self.assertGreaterEqual(count, 10)

    @rig.with_interface
    def test_snippets_give_back_what_others_need(self):
        caching = [
            code
            for code in snippets("programs-that-share.md", "python")
            if "find_batch" not in code
        ]
        self.assertEqual(len(caching), 4)
        asker = """
        import torch
        torch.cuda.init()
        # More than is left, and less than what the other one can give back besides.
        size = gpulimit.available() + (40 << 20)
        try:
            torch.empty(size, dtype=torch.uint8, device="cuda")
            print("granted")
        except torch.cuda.OutOfMemoryError:
            print("refused")
        """
        silent = re.compile(r"^gpulimit\..*enable\(\)$|^@gpulimit\.on_pressure$", re.MULTILINE)
        for code in caching:
            for text, expected in ((code, "granted\n"), (silent.sub("", code), "refused\n")):
                with self.subTest(code=text):
                    self.until_empty("lab")
                    hold = "\nprint('holds', flush=True)\nsys.stdin.read()\n"
                    holder = self.start(text + hold, **self.member)
                    self.assertEqual(holder.stdout.readline(), "holds\n")
                    out, _ = self.run_python(asker, **self.member)
                    self.assertEqual(out, expected)
                    _, errors = self.finish(holder)
                    self.assertEqual(errors, "")

    def test_the_snippet_in_c(self):
        [code] = snippets("programs-that-share.md", "c")
        source, program = self.folder / "give_back.c", self.folder / "give_back"
        source.write_text(code)
        options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-I", str(HEADER.parent)]
        subprocess.run(["cc", *options, str(source), "-ldl", "-o", str(program)], check=True)
        done = subprocess.run([program], env=self.environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "no limit, or no libgpulimit.so\n"))
        member = {"LD_PRELOAD": rig.LIBRARY, "GPULIMIT_GROUP": "lab"}
        environment = {**self.environment, **member}
        done = subprocess.run([program], env=environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "nobody needs memory\n"), done.stderr)
