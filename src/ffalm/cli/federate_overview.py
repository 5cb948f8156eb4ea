"""`ffalm federate init | status | stop`: a federation's folder, and what runs of it on this machine."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ffalm.cli.federate_group import AnyFolder, federate, site_or_federation
from ffalm.cli.flags import assign, listed, put
from ffalm.cli.output import Json, print_json
from ffalm.errors import require

_INIT = "ffalm federate init clinics --sites north,south --address fair.example:18000 --label readmitted --group sex"


@federate.command(epilog=f"Example: {_INIT}")
def init(
    name: Annotated[Path, typer.Argument(help="The folder to make; its name is the federation's.", metavar="FOLDER")],
    sites: Annotated[str, typer.Option(help="Names of the sites, comma-separated; with --demo also a number.")] = "",
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the coordinator, as sites call it. Default: 127.0.0.1:18000.")
    ] = None,
    demo: Annotated[str | None, typer.Option(help="census: give every site a part of generated people.")] = None,
    data: Annotated[str | None, typer.Option(help="Data at each site: table or images. Default: table.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column at every site.")] = None,
    group: Annotated[str | None, typer.Option(help="The group column at every site.")] = None,
    favourable: Annotated[str | None, typer.Option(help="The favourable value of the label.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm to train with. Default: ffalm.")] = None,
    preset: Annotated[str | None, typer.Option(help="Preset of the algorithm; by default safe for FFALM.")] = None,
    model: Annotated[str | None, typer.Option(help="linear, mlp, cnn or resnet18. Default: mlp.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. Default: 70, with --demo 10.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the model, the batches and the demo's split. Default: 0.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help='Fairness target that the run answers, such as "dpd <= 0.05"; none for no target.'),
    ] = None,
    repair: Annotated[
        str | None,
        typer.Option(
            help="Thresholds that the answer may use: none, single, groups or randomised; or blind: a rule without the "
            "group, for which a second model is trained. Default: groups."
        ),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence with which held-out gaps must be within the target.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            "--target-scope", help="Where the target is to hold: federation, sites or both. Default: federation."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows that the demo generates.")] = 45_000,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings, as in federation.toml.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting, e.g. --set rules.min_sites=3.")] = None,
) -> None:
    """Write a federation folder: settings, certificates, the app, and a folder for each site."""
    from ffalm.federate.deploy import require_flower

    require_flower()
    from ffalm.federate.deploy.creation import make

    flags = {
        "address": address,
        "data.source": data,
        "data.label": label,
        "data.group": group,
        "data.favourable": favourable,
        "algorithm.name": algorithm,
        "algorithm.preset": preset,
        "model.name": model,
        "training.rounds": rounds,
        "seed": seed,
        "target": target,
        "repair": repair,
        "confidence": confidence,
        "scope": scope,
    }
    asked: dict[str, Any] = {}
    for path, value in flags.items():
        if value is not None:
            put(asked, path, value)
    assign(asked, set_ or ())
    folder = make(name, listed(sites), asked, config, demo, rows)
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
    from ffalm.federate.deploy import require_flower

    require_flower()
    from ffalm.federate.deploy.operations import processes_of, stop_all

    require(name.is_dir(), f"There is no folder {name}: name a federation folder, or a site folder.")
    ended = stop_all(processes_of(name))
    typer.echo(f"Ended: {', '.join(ended)}." if ended else f"Nothing of {name} was running here.")
