"""Warns where PyPI's other package `gpulimit`, whose module has the same name, is installed too."""

from __future__ import annotations

import os
import warnings


def warn(packages: str) -> None:
    """Looks for the other package in the folder that has this module."""
    try:
        names = os.listdir(packages)
    except OSError:
        return
    for name in names:
        if name.startswith("gpulimit-") and name.endswith((".dist-info", ".egg-info")):
            warnings.warn(
                f"{packages} has PyPI's unrelated package {name.rpartition('.')[0]}, too, whose "
                "module has the name of this one: run `pip uninstall gpulimit`, then "
                "`pip install --force-reinstall` with the wheel of gpulimit-cap",
                stacklevel=3,
            )


warn(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
