"""`ffalm federate init | status | stop`: a federation's folder, and its processes on this machine."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ffalm.cli.federate_group import AnyFolder, federate, site_or_federation
from ffalm.cli.flags import Flag, listed, overrides, takes
from ffalm.cli.output import Json, print_json
from ffalm.errors import require
from ffalm.federate.deploy import require_flower

_PANEL = "Options"
_INIT = "ffalm federate init clinics --sites north,south --address fair.example:18000 --label readmitted --group sex"


def _sets(path: str, name: str, help: str, kind: type = str) -> Flag:
    """A flag that writes a setting."""
    return Flag(name, kind | None, help, _PANEL, path)


_FLAGS = (
    Flag("sites", str, "Names of the sites, comma-separated; with --demo also a number.", _PANEL, default=""),
    _sets("address", "address", "HOST:PORT of the coordinator, as sites call it. Default: 127.0.0.1:18000."),
    Flag("demo", str | None, "census: give every site a part of generated people.", _PANEL),
    _sets("data.source", "data", "Data at each site: table or images. Default: table."),
    _sets("data.label", "label", "The label column at every site."),
    _sets("data.group", "group", "The group column at every site."),
    _sets("data.favourable", "favourable", "The favourable value of the label."),
    _sets("data.missing", "missing", "Missing numbers: refuse them, or mean: that of all sites. Default: refuse."),
    _sets("algorithm.name", "algorithm", "Algorithm to train with. Default: ffalm."),
    _sets("algorithm.preset", "preset", "Preset of the algorithm; by default safe for FFALM."),
    _sets("model.name", "model", "linear, mlp, cnn or resnet18. Default: mlp."),
    _sets("training.rounds", "rounds", "Communication rounds. Default: 70, with --demo 10.", int),
    _sets("seed", "seed", "Seed of the model, the batches and the demo's split. Default: 0.", int),
    _sets("target", "target", 'Fairness target that the run answers, such as "dpd <= 0.05"; none for no target.'),
    _sets("repair", "repair", "Thresholds that the answer may use: none, single, groups or randomised; or blind: a "
          "rule without the group, for which a second model is trained. Default: groups."),
    _sets("confidence", "confidence", "Confidence with which held-out gaps must be within the target.", float),
    _sets("scope", "target_scope", "Where the target is to hold: federation, sites or both. Default: federation."),
    Flag("rows", int, "Rows that the demo generates.", _PANEL, default=45_000),
    Flag("config", Path | None, "TOML file of settings, as in federation.toml.", _PANEL),
    Flag("set", list[str] | None, "Any setting, e.g. --set rules.min_sites=3.", _PANEL),
)  # fmt: skip


@federate.command(epilog=f"Example: {_INIT}")
@takes("init", lambda: _FLAGS)
def init(
    name: Annotated[Path, typer.Argument(help="The folder to make; its name is the federation's.", metavar="FOLDER")],
    **values: Any,
) -> None:
    """Write a federation folder: settings, certificates, the app, and a folder for each site."""
    require_flower()
    from ffalm.federate.deploy.creation import make

    settings, demo = overrides(values, _FLAGS), values["demo"]
    folder = make(name, listed(values["sites"]), settings, values["config"], demo, values["rows"])
    typer.echo(f"Written: {name}, with a folder for each of {', '.join(folder.sites)} in {name / 'sites'}.")
    if demo is not None:
        typer.echo(f"Train on this machine: ffalm federate run {quote(str(name))} --local")
    else:
        typer.echo(f"Next: hand each site its folder, and start `ffalm federate coordinator {quote(str(name))}`.")


@federate.command(epilog="Example: ffalm federate status hospitals --json")
def status(name: AnyFolder, as_json: Json = False) -> None:
    """Show processes on this machine, sites online, the round and the last metrics; for a site, whether it runs."""
    folder = site_or_federation(name)
    from rich.console import Console

    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
    from ffalm.federate.deploy.status import seen, site_seen, site_sentence, table

    at_site = isinstance(folder, SiteFolder)
    found = site_seen(SiteProcess(folder)) if isinstance(folder, SiteFolder) else seen(CoordinatorProcess(folder))
    if as_json:
        print_json(found)
    elif at_site:
        typer.echo(site_sentence(found))
    else:
        Console(markup=False).print(table(found), highlight=False)


@federate.command(epilog="Example: ffalm federate stop hospitals")
def stop(name: AnyFolder) -> None:
    """Stop every process of a folder on this machine; the training so far is kept."""
    require_flower()
    from ffalm.federate.deploy.operations import processes_of, stop_all

    require(name.is_dir(), f"There is no folder {name}: name a federation folder, or a site folder.")
    ended = stop_all(processes_of(name))
    typer.echo(f"Ended: {', '.join(ended)}." if ended else f"Nothing of {name} was running here.")
