"""The environment in which Flower and Ray neither phone home, nor install anything, nor fight over cores."""

from __future__ import annotations

import os

from ffalm.system import quiet

QUIET = {**quiet.QUIET, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "OMP_NUM_THREADS": "1"}
"""Variables for every process of a federation on this machine."""


def require_flower(*modules: str) -> None:
    """Refuse to go on where Flower, or a module that its extra brings, is not installed."""
    quiet.require_installed("The engine 'flower'", *modules)


def keep_quiet() -> None:
    """Set the variables for this process and its children, except those that the user has set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
