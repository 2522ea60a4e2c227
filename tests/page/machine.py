"""A simulated machine with groups, members that hold GPU memory, and `gpulimit serve`."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "python"))

import support  # noqa: E402
from support import CONTROLLER, DRIVER, PATIENCE, REPOSITORY  # noqa: E402, F401

LIBRARY = os.environ["GPULIMIT_TEST_LIBRARY"]
GIB = 1 << 30
HOST = "127.0.0.1"
TOKEN = "a-token-of-the-tests"


class Machine:
    """A machine of its own, whose groups are in a temporary folder."""

    def __init__(self, **knobs):
        self.folder = support.unique(tempfile.gettempdir(), "gpulimit-test-")
        self.root = self.folder / "root"
        # A server with --public shows a root that all users can read, if it belongs to root.
        self.root.mkdir()
        self.root.chmod(0o755)
        self.memory = support.in_memory()
        self.environment = {
            **support.clean(),
            "GPULIMIT_ROOT": str(self.root),
            "GPULIMIT_SIM_STATE": str(self.memory / "machine"),
            "LD_LIBRARY_PATH": str(DRIVER),
            **{f"GPULIMIT_SIM_{name.upper()}": str(value) for name, value in knobs.items()},
        }
        self.members = []
        self.server = None

    def gpulimit(self, *arguments):
        """Runs the controller, and returns what it prints."""
        done = subprocess.run(
            [CONTROLLER, *arguments], env=self.environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise AssertionError(f"gpulimit {arguments}: {done.stderr}")
        return done.stdout

    def member(self, group, *arguments):
        """Starts a process in a group, with these arguments in its command line."""
        member = Member(self.environment, group, arguments)
        self.members.append(member)
        return member

    def close(self):
        for member in self.members:
            member.end()
        if self.server:
            self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)


class Member:
    """A process that holds GPU memory."""

    def __init__(self, environment, group, arguments):
        preload = {"LD_PRELOAD": LIBRARY, "GPULIMIT_GROUP": group}
        self.process = subprocess.Popen(
            ["python3", "holder.py", *arguments],
            executable=sys.executable,
            cwd=HERE,
            env={**environment, **preload},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.check(self.process.stdout.readline())

    @staticmethod
    def check(answer, expected=0):
        if answer.strip() != str(expected):
            raise AssertionError(f"the driver's answer is {answer!r}, not {expected}")

    def ask(self, line):
        """Gives the process a line, and does not wait for the answer."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def take(self, size, expected=0):
        self.ask(f"take {size}")
        self.check(self.process.stdout.readline(), expected)

    def free(self):
        self.ask("free")
        self.check(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate()


class Server:
    """`gpulimit serve` at a TCP port. A server that is started again listens at the same port."""

    def __init__(self, machine, *options):
        self.machine = machine
        machine.server = self
        token = machine.folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.options = options or ("--unprotected-port", "--token-file", str(token))
        self.port = 0
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [CONTROLLER, "serve", "--listen", f"{HOST}:{self.port}", *self.options],
            env=self.machine.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = []
        for line in self.process.stderr:
            said.append(line)
            found = re.search(r"serves at \D*127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                return self
        raise AssertionError(f"gpulimit serve does not start: {''.join(said)}")

    def stop(self):
        self.process.terminate()
        self.process.communicate()

    @property
    def address(self):
        return f"http://{HOST}:{self.port}/"

    def get(self, path):
        """Returns JSON of the server."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
        request = urllib.request.Request(self.address + path, headers=headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
