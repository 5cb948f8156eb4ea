"""Whether a run may go on with the settings and sites that federation.toml has now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ffalm import config as study
from ffalm.algorithms import Algorithm
from ffalm.data.types import Task
from ffalm.errors import UserError, require
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.federation_config import FederationConfig

#: Settings that may change between two starts of a run; sites may be added at the end of `sites` too. The paths of
#: plugins change when the folder is moved or restored; the algorithm that they register is compared.
_MAY_CHANGE = ("rules", "secure", "address", "allow", "removed", "logs", "metrics", "plugins", *study.AFTER_TRAINING)


def check_unchanged(config: FederationConfig, run: Path) -> None:
    """Refuse to go on with other settings than a run began with; does nothing if it has not begun."""
    kept, agreed = run / "config.toml", run / "encoding.json"
    if not agreed.exists():
        return
    before, now = FederationConfig.parse({**study.read(kept), "plugins": []}), config  # its plugins are imported
    added = now.sites[len(before.sites) :]
    changed = [name for name, value in _essence(now).items() if _essence(before)[name] != value]
    if now.sites[: len(before.sites)] != before.sites:
        changed.append("sites")
    require(
        not changed,
        f"The part {changed[0] if changed else ''!r} of federation.toml has changed since this run began: put it back, "
        f"or move the folder {run} away to start a new run.",
    )
    if added:
        check_may_join(config, Agreement.load(agreed).task, run)


def check_may_join(config: FederationConfig, task: Task, run: Path) -> None:
    """Refuse a new site if a run that has begun cannot admit it."""
    again = f"move the folder {run} away to start a new run with it."
    require(
        config.privacy is None,
        f"A site cannot join a run with differential privacy once it has begun: {again}",
    )
    require(
        not _counts_clients(config.algorithm, task),
        f"{config.algorithm.title} keeps numbers of each client, so that a site cannot join a run that has begun: "
        f"{again}",
    )


def _counts_clients(algorithm: Algorithm, task: Task) -> bool:
    """Whether the server's state has an entry for each client."""
    try:
        few, many = (
            algorithm.start(task, torch.ones(clients, task.labels, task.groups, dtype=torch.int64))
            for clients in (2, 3)
        )
    except UserError:
        return True  # its settings are for a number of clients
    return any(few[name].shape != value.shape for name, value in many.items())


def _essence(config: FederationConfig) -> dict[str, Any]:
    settings = config.settings()
    training = {name: value for name, value in settings["training"].items() if name != "rounds"}
    kept = {name: value for name, value in settings.items() if name not in (*_MAY_CHANGE, "sites")}
    model = dict(kept["model"])
    if "weights" in model:
        model["weights"] = Path(model["weights"]).name  # wherever the folder is now
    return {**kept, "training": training, "model": model}
