"""The status of a federation, or of a site, as seen from its own machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ffalm.errors import UserError
from ffalm.federate.deploy import follow
from ffalm.federate.deploy.operations import COORDINATOR, CoordinatorProcess, SiteProcess, processes_of, why_unreachable
from ffalm.federate.run_notice import read_notice

if TYPE_CHECKING:
    from rich.console import RenderableType


def seen(coordinator: CoordinatorProcess) -> dict[str, Any]:
    """In plain values: processes here, the sites' status, the state of the training, its round and last metrics."""
    folder = coordinator.folder
    here = {who: process.pid() for who, process in processes_of(folder.path).items()}
    statuses = _statuses(coordinator)
    running = here[COORDINATOR] is not None and follow.under_way(coordinator) is not None
    records, doing = follow.records(folder), follow.doing(folder)  # read together, after all that takes time
    done = follow.result(folder) is not None
    scored = [record for record in records if record.get("accuracy") is not None]
    training = "finished" if done else "interrupted" if records else "not started"
    if not done and running:
        training = "running"
    return {
        "name": folder.name,
        "address": folder.facts.get("address"),
        "coordinator": here.pop(COORDINATOR),
        "sites": {site: {"status": status, "process": here.get(site)} for site, status in statuses.items()},
        "training": training,
        "message": doing.get("message", ""),
        "round": records[-1]["round"] if records else 0,
        "rounds": folder.facts.get("training", {}).get("rounds"),
        "metrics": {name: scored[-1].get(name) for name in ("round", "accuracy", "dpd", "eod")} if scored else {},
    }


def site_seen(site: SiteProcess) -> dict[str, Any]:
    """A site as seen from its own machine, in plain values; only the coordinator knows whether it takes part."""
    host, port = site.folder.address
    return {
        "site": site.folder.name,
        "address": f"{host}:{port}",
        "process": site.process.pid(),
        "log": str(site.process.log),
        "unreachable": why_unreachable(host, port),
        "notice": read_notice(site.folder.path),
    }


def site_sentence(found: dict[str, Any]) -> str:
    """The same for people."""
    runs = f"runs as process {found['process']}" if found["process"] else "is not running"
    told = [f"The site {found['site']} of the coordinator at {found['address']} {runs}; its log is {found['log']}."]
    if found["unreachable"]:
        again = " A site that runs connects again by itself." if found["process"] else ""
        told.append(f"The coordinator cannot be reached: {found['unreachable']}{again}")
    last = found["notice"]
    told += [f"Last word of a run, {last['time']}: {last['message']}"] if last else []
    return "\n".join(told)


def table(found: dict[str, Any]) -> RenderableType:
    """The same for people."""
    from rich.console import Group
    from rich.table import Table

    coordinator = found["coordinator"]
    runs = f"runs as process {coordinator}" if coordinator else "is not running"
    sites = Table("site", "status", "process here", title_justify="left")
    for name, site in found["sites"].items():
        sites.add_row(name, site["status"], str(site["process"] or "-"))
    lines = [f"{found['name']}: the coordinator at {found['address']} {runs}."]
    training = f"Training {found['training']}, round {found['round']}/{found['rounds']}."
    metrics = found["metrics"]
    if metrics:
        shown = [
            f"{name} {100 * metrics[name]:.1f}" for name in ("accuracy", "dpd", "eod") if metrics[name] is not None
        ]
        training += f" After round {metrics['round']}: {', '.join(shown)} (%)."
    return Group(*lines, sites, f"{training} {found['message']}")


def _statuses(coordinator: CoordinatorProcess) -> dict[str, str]:
    """Each site's status: online, offline, or registered and never seen; unknown without a coordinator."""
    sites = coordinator.folder.sites
    if coordinator.process.pid() is None:
        return dict.fromkeys(sites, "unknown")
    try:
        nodes = coordinator.control.nodes()
    except UserError:
        return dict.fromkeys(sites, "unknown")
    numbers = {site: number for site, number in coordinator.nodes().items() if number is not None}
    return {site: _WORDS.get(nodes.get(numbers.get(site, -1), ""), "unknown") for site in sites}


_WORDS = {"online": "online", "offline": "offline", "registered": "not seen yet", "unregistered": "shut out"}
