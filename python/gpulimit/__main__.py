"""`python -m gpulimit OPTION… SCRIPT ARGUMENT…`: runs a script of Python under a limit.

The options are those of `gpulimit run`, and the script runs in this interpreter:

    python -m gpulimit --max 4G train.py --epochs 3
    python -m gpulimit --max 4G -m package.train
    python -m gpulimit --max 4G -- -O train.py      # other options of Python follow `--`

`python -m gpulimit show`, and each other command of gpulimit, is that command.
"""

from __future__ import annotations

import os
import sys
from typing import List, NoReturn

from . import _program

FAILED = 125
"""The status with which `gpulimit run` ends if it cannot run the command."""


def command(arguments: List[str]) -> List[str]:
    """Returns the arguments of the program `gpulimit`."""
    first = arguments[0] if arguments else "--help"
    # A folder is a script if it has a `__main__.py`.
    is_script = os.path.isfile(first) or os.path.isfile(os.path.join(first, "__main__.py"))
    own = first.replace("-", "").isalpha() and first[0] != "-" and not is_script
    if own or first in ("-h", "--help", "-V", "--version"):
        return arguments or [first]
    return ["run", "--interpreter", sys.executable, *arguments]


def main() -> NoReturn:
    program = _program.path()
    if program is None:
        sys.stderr.write(
            "gpulimit: cannot find the program gpulimit: install it with "
            "`pip install --force-reinstall gpulimit-cap`\n"
        )
        sys.exit(FAILED)
    # The program takes the place of this process: pid, signals and exit status are its own.
    os.execv(program, [program, *command(sys.argv[1:])])


if __name__ == "__main__":
    main()
