"""The two terminals of the README's picture, which scripts/picture draws from the record."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from harness import Outcome, binary, check, plain_environment

PROGRAMS = {
    "train.py": """import torch

weights = torch.zeros(1 << 26, device="cuda", requires_grad=True)
optimiser = torch.optim.Adam([weights])
for step in range(1, 1 << 30):
    optimiser.zero_grad()
    (weights - 1).square().mean().backward()
    optimiser.step()
    if step % 1000 == 0:
        torch.cuda.synchronize()
        print(f"step {step}, {torch.cuda.memory_allocated() / 2**30:.1f} GiB", flush=True)
""",
    "greedy.py": """import time
import torch

taken = []
while True:
    taken.append(torch.zeros(256, 1024, 1024, device="cuda"))
    print(f"{len(taken)} GiB, and more ...", flush=True)
    time.sleep(1)
""",
}


class Pane:
    """A terminal: the lines of its command, among those of the other one as they come."""

    def __init__(self, side: str, script: str, folder: str, lines: list[str]) -> None:
        self.side, self.lines, self.folder = side, lines, folder
        command = ["run", "--max", "4G", "--", "python", script]
        self.say("$ gpulimit " + " ".join(command))
        command[4] = sys.executable
        self.process = subprocess.Popen(
            [str(binary("gpulimit")), *command],
            cwd=folder,
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def say(self, line: str) -> None:
        line = line.rstrip().replace(f"{self.folder}/", "")
        # PyTorch's advice would fill the picture.
        line = re.sub(r"(memory in use\.) Of the allocated memory .*", r"\1 […]", line)
        self.lines.append(f"{self.side}| {line}")

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.say(line)

    def said(self) -> list[str]:
        return [line for line in list(self.lines) if line.startswith(self.side)]

    def await_more(self, count: int) -> None:
        """Waits for so many more lines, or for the end of the command."""
        until = len(self.said()) + count
        while len(self.said()) < until and self.process.poll() is None:
            time.sleep(0.05)

    def end(self) -> int:
        """Waits for the end of the command and of its output, and returns its status."""
        status = self.process.wait()
        self.reader.join()
        return status


@check("picture", timeout=180, needs=("torch",))
def picture(outcome: Outcome) -> None:
    """PyTorch's own error ends the greedy program, and the training beside it goes on."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in PROGRAMS.items():
            Path(folder, name).write_text(text)
        training = Pane("left", "train.py", folder, lines)
        try:
            training.await_more(3)
            greedy = Pane("right", "greedy.py", folder, lines)
            status = greedy.end()
            training.await_more(3)
            outcome.expect(training.process.poll() is None, f"the training ended: {lines[-9:]}")
        finally:
            training.process.terminate()
            training.end()
    outcome.figures["lines"] = lines
    said = "\n".join(greedy.said())
    outcome.expect(status == 1, f"the greedy program ended with {status}")
    for text in ("gpulimit: refused cuMemAlloc", "torch.OutOfMemoryError: CUDA out of memory."):
        outcome.expect(text in said, f"no {text!r} in {said}")
