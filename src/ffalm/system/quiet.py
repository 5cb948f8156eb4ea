"""Environment variables of Flower's processes; nothing here imports Flower, Ray or torch."""

from __future__ import annotations

import importlib.util

from ffalm.errors import require

#: Variables under which Flower and Ray neither phone home nor install anything.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def require_installed(who: str, *modules: str) -> None:
    """Refuse to go on if Flower or a module of its extra is not installed; `who` begins the sentence."""
    found = all(importlib.util.find_spec(name) is not None for name in ("flwr", *modules))
    require(found, f"{who} needs Flower: pip install 'ffalm[flower]'.")
