"""The environment in which Flower and Ray neither phone home, nor install anything, nor fight over cores."""

from __future__ import annotations

import importlib.util
import os

from ffalm.errors import require

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}
"""Variables for every process of a federation on this machine."""


def require_flower(*modules: str) -> None:
    """Refuse to go on where Flower, or a module that its extra brings, is not installed."""
    for module in ("flwr", *modules):
        require(
            importlib.util.find_spec(module) is not None,
            "The engine 'flower' needs Flower: pip install 'ffalm[flower]'.",
        )


def keep_quiet() -> None:
    """Set the variables for this process and its children, except those that the user has set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
