"""The program `gpulimit` of the package that this module is from."""

from __future__ import annotations

import os
import shutil
from typing import Optional


def path() -> Optional[str]:
    """Returns the path of the program: that of the package, or else the first one in PATH."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files("gpulimit-cap") or ()
    except PackageNotFoundError:
        listed = ()
    for file in listed:
        if file.name == "gpulimit" and file.parent.name == "bin":
            place = os.path.realpath(file.locate())
            if os.access(place, os.X_OK):
                return place
    return shutil.which("gpulimit")
