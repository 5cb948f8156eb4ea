"""`ffalm federate coordinator | site | run | audit`: the commands that start processes, train and audit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.cli.federate_group import Detach, Folder, Insecure, federate, sound_federation
from ffalm.cli.federate_progress import RoundLines, show_result
from ffalm.cli.output import Json
from ffalm.cli.running import Stopped, interrupting_signals
from ffalm.errors import require
from ffalm.federate.deploy import require_flower

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
    from ffalm.federate.deploy.processes import FlowerProcess
    from ffalm.federate.federation_config import LocalData

_SECONDS_TO_CONNECT = 90.0


@federate.command(epilog="Example: ffalm federate coordinator hospitals --detach")
def coordinator(
    name: Folder,
    detach: Detach = False,
    insecure: Insecure = False,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: all of IPv4, or of IPv6 if `address` is of it.")
    ] = None,
) -> None:
    """Start the coordinator: sites can connect from now on, and `run` trains."""
    from ffalm.federate.deploy.operations import CoordinatorProcess

    folder = sound_federation(name)
    leader = CoordinatorProcess(folder)
    host, port = folder.address
    _warn(insecure)
    who = f"The coordinator of {folder.path.name}"
    _serve(leader.process, lambda: leader.start(listen, insecure), who, f"waits for sites at {host}:{port}", detach)


@federate.command(epilog="Example: ffalm federate site north")
def site(
    folder: Annotated[Path, typer.Argument(help="The site folder that the coordinator sent.", metavar="SITE_FOLDER")],
    detach: Detach = False,
    insecure: Insecure = False,
    wait: Annotated[float, typer.Option(help="Seconds to try to reach the coordinator.")] = _SECONDS_TO_CONNECT,
) -> None:
    """Connect this site to its coordinator and take part in training until stopped."""
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.operations import SiteProcess
    from ffalm.federate.federation_config import SiteConfig

    require_flower()
    own = SiteProcess(SiteFolder.find(folder))
    _require_data(own.folder.path, SiteConfig.read(own.folder.path / "site.toml").data)
    _warn(insecure)
    _serve(own.process, lambda: own.start(wait, insecure), f"The site {own.folder.name}", "takes part", detach)


@federate.command(epilog="Example: ffalm federate run demo --local")
def run(
    name: Folder,
    local: Annotated[
        bool,
        typer.Option("--local", help="Run the coordinator and all sites on this machine, and stop them afterwards."),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start the training and return; see `status`.")] = False,
    insecure: Insecure = False,
    target: Annotated[
        str | None,
        typer.Option(
            help='Fairness target of the run, such as "dpd <= 0.05", or none: goes into federation.toml; refused where '
            "the run has begun with another."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train to the end, resume an interrupted training or follow one under way, and show the results."""
    from rich.console import Console

    from ffalm.federate.deploy import follow
    from ffalm.federate.deploy.operations import CoordinatorProcess

    require(not (local and detach), "--local ends the sites after the training, so it cannot --detach.")
    folder = sound_federation(name)
    if target is not None:
        folder.set_target(target)
    leader, console = CoordinatorProcess(folder), Console(stderr=True, quiet=quiet)
    if follow.result(folder) is None:
        command = f"ffalm federate run {quote(str(name))}{' --local' * local}"
        again = f"stopped, the rounds so far are kept; go on with: {command}"
        _warn(insecure)
        here = _all_here(leader, console, insecure) if local else _there(leader)
        # A training that this command only follows goes on at the coordinator when the connection to it breaks.
        with _undone(lambda: None, again, hang_up=local), here:
            number = follow.under_way(leader)
            if number is None:
                number = follow.submit(leader)
            else:
                console.print("A training is under way; this command follows it.", highlight=False)
            if detach:
                follow.await_start(leader, number)
                typer.echo(f"The training goes on in the background: ffalm federate status {quote(str(name))}")
                return
            try:
                rounds = RoundLines(console, folder.facts)
                follow.watch(leader, number, rounds.show, rounds.tell)
            except KeyboardInterrupt:
                leader.control.stop(number)
                raise
    else:
        console.print(f"The training has ended already; remove {folder.run} to train again.", highlight=False)
    show_result(folder.run, as_json)


@federate.command(epilog="Example: ffalm federate audit hospitals --prediction said --local")
def audit(
    name: Folder,
    prediction: Annotated[str | None, typer.Option(help="Column of predicted outcomes at every site.")] = None,
    score: Annotated[str | None, typer.Option(help="Column of scores at every site.")] = None,
    decision: Annotated[float, typer.Option(help="Score from which the favourable outcome is predicted.")] = 0.5,
    model: Annotated[Path | None, typer.Option(help="Folder of a trained model, such as this federation's.")] = None,
    fail_if: Annotated[list[str] | None, typer.Option(help="Exit with code 3 if this holds; see ffalm audit.")] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file for the report.")] = None,
    local: Annotated[bool, typer.Option("--local", help="Run the coordinator and all sites on this machine.")] = False,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Audit predictions, scores or a model over all sites' held-out rows, without training: only counts are sent."""
    from rich.console import Console

    from ffalm.cli.audit_command import finish_audit
    from ffalm.federate.coordinator.federated_audit import AuditRequest, read_audit
    from ffalm.federate.deploy import follow
    from ffalm.federate.deploy.operations import CoordinatorProcess
    from ffalm.federate.federation_config import FederationConfig

    folder, console = sound_federation(name), Console(stderr=True)
    request = AuditRequest(prediction, score, decision, None if model is None else str(model.resolve()))
    request.check(FederationConfig.read(folder.path / "federation.toml"))
    folder = folder.new_audit()
    request.write(folder.run)
    leader = CoordinatorProcess(folder)
    _warn(insecure)
    with _undone(lambda: None, "stopped"), _all_here(leader, console, insecure) if local else _there(leader):
        number = follow.submit(leader)
        follow.watch(leader, number, lambda _: None, RoundLines(console, folder.facts).tell)
    finish_audit(read_audit(folder.run), fail_if or (), out, as_json)


def _serve(process: FlowerProcess, start: Callable[[], None], who: str, does: str, detach: bool) -> None:
    """Start a process; unless detached, wait until it ends or the user stops it."""
    with _undone(process.stop, f"t{who[1:]} was stopped"):
        start()
        typer.echo(f"{who} {does}; its log is {process.log}.{'' if detach else ' Ctrl-C ends it.'}")
        if detach:
            return
        process.join(who)
    typer.echo(f"{who} has ended.")


def _require_data(folder: Path, data: LocalData) -> None:
    """Check that the site's data exists before it connects."""
    from ffalm.federate.deploy.doctor import data_paths

    where = f"say in {folder / 'site.toml'} where this site's data is."
    for name, path in data_paths(folder, data).items():
        require(path.exists(), f"There is no {path}: {where}")
        require(path.is_dir() == (name == "folder"), f"{path} is no {name.replace('labels', 'file')}: {where}")


def _warn(insecure: bool) -> None:
    if insecure:
        typer.echo(
            "ffalm: warning: --insecure: nothing is encrypted, and anybody who reaches the coordinator may take part.",
            err=True,
        )


@contextmanager
def _undone(undo: Callable[[], object], message: str, hang_up: bool = True) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, and with `hang_up` where the terminal is closed, undo and report it."""
    with interrupting_signals(hang_up):
        try:
            yield
        except KeyboardInterrupt:
            undo()
            raise Stopped(message) from None


@contextmanager
def _there(leader: CoordinatorProcess) -> Iterator[None]:
    """The coordinator and the sites are started elsewhere."""
    leader.require_running()
    yield


@contextmanager
def _all_here(leader: CoordinatorProcess, console: Console, insecure: bool) -> Iterator[None]:
    """The coordinator and all its sites as processes of this machine; they are always stopped at the end."""
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.operations import SiteProcess, processes_of, stop_all

    folder = leader.folder
    sites = [SiteProcess(SiteFolder.find(folder.site(name))) for name in folder.sites]
    require(leader.process.pid() is None, f"The coordinator of {folder.path} is running already: leave out --local.")
    try:
        leader.start(insecure=insecure)
        _start_together(sites, insecure)
        console.print(
            f"The coordinator and {len(sites)} sites run on this machine; logs are in {folder.path}.",
            highlight=False,
            soft_wrap=True,
        )
        yield
    finally:
        stop_all(processes_of(folder.path))


def _start_together(sites: list[SiteProcess], insecure: bool) -> None:
    """Start the sites in parallel; if one fails or the user stops it, do not wait for the others."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from ffalm.federate.deploy.operations import SiteProcess

    with ThreadPoolExecutor(2 * len(sites)) as starts:
        started = [starts.submit(site.start, _SECONDS_TO_CONNECT, insecure) for site in sites]
        try:
            for start in as_completed(started):
                start.result()
        except BaseException:
            list(starts.map(SiteProcess.give_up, sites))
            raise
