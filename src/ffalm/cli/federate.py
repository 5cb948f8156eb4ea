"""`ffalm federate`: a coordinator and its sites, each on its own machine, or all on this one to try it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import assign, listed, put
from ffalm.cli.running import Stopped
from ffalm.errors import TrainingDiverged, require
from ffalm.files import parsed_json

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.federate.deploy.follow import Record
    from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
    from ffalm.federate.deploy.processes import FlowerProcess
    from ffalm.federate.federation_config import LocalData

federate = typer.Typer(
    help="Train with real sites over an encrypted network: rows stay at the sites, weights and sums are sent.",
    no_args_is_help=True,
    epilog="Try it: ffalm federate init demo --demo census && ffalm federate run demo --local",
)

_Folder = Annotated[
    Path, typer.Argument(help="The federation folder that `init` made.", show_default=False, metavar="FEDERATION")
]
_Any = Annotated[Path, typer.Argument(help="A federation folder, or a site folder.", metavar="FEDERATION|SITE_FOLDER")]
_Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption and no keys: for experiments on one machine only.")
]
_Detach = Annotated[bool, typer.Option("--detach", help="Go on in the background; `ffalm federate stop` ends it.")]
_Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
_SECONDS_TO_CONNECT = 90.0


def add_to(app: typer.Typer) -> None:
    """Register the command group."""
    app.add_typer(federate, name="federate")


_INIT = "ffalm federate init clinics --sites north,south --address fair.example:18000 --label readmitted --group sex"


@federate.command(epilog=f"Example: {_INIT}")
def init(
    name: Annotated[Path, typer.Argument(help="The folder to make; its name is the federation's.", metavar="FOLDER")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas; with --demo also a number.")] = "",
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
        typer.Option(help="Thresholds that the answer may use: none, single, groups or randomised. Default: groups."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence with which held-out gaps must be within the target.")
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


@federate.command(epilog="Example: ffalm federate coordinator hospitals --detach")
def coordinator(
    name: _Folder,
    detach: _Detach = False,
    insecure: _Insecure = False,
    listen: Annotated[str | None, typer.Option(help="Address of this machine to listen on; by default all.")] = None,
) -> None:
    """Start the coordinator: sites may come from now on, and `run` trains."""
    from ffalm.federate.deploy.operations import CoordinatorProcess

    folder = _sound_federation(name)
    leader = CoordinatorProcess(folder)
    host, port = folder.address
    _warn(insecure)
    who = f"The coordinator of {folder.path.name}"
    _serve(leader.process, lambda: leader.start(listen, insecure), who, f"waits for sites at {host}:{port}", detach)


@federate.command(epilog="Example: ffalm federate site north")
def site(
    folder: Annotated[Path, typer.Argument(help="The site folder that was handed over.", metavar="SITE_FOLDER")],
    detach: _Detach = False,
    insecure: _Insecure = False,
    wait: Annotated[float, typer.Option(help="Seconds to try to reach the coordinator.")] = _SECONDS_TO_CONNECT,
) -> None:
    """Take part with this site's data until stopped."""
    from ffalm.federate.deploy import require_flower
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
    name: _Folder,
    local: Annotated[
        bool,
        typer.Option("--local", help="Run the coordinator and all sites on this machine, and stop them afterwards."),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start the training and return; see `status`.")] = False,
    insecure: _Insecure = False,
    target: Annotated[
        str | None,
        typer.Option(
            help='Fairness target of the run, such as "dpd <= 0.05", or none: goes into federation.toml; refused where '
            "the run has begun with another."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    as_json: _Json = False,
) -> None:
    """Train to the end, resume an interrupted training or follow one under way, and show the results."""
    from rich.console import Console

    from ffalm.federate.deploy import follow
    from ffalm.federate.deploy.operations import CoordinatorProcess

    require(not (local and detach), "--local ends the sites after the training, so it cannot --detach.")
    folder = _sound_federation(name)
    if target is not None:
        folder.set_target(target)
    leader, console = CoordinatorProcess(folder), Console(stderr=True, quiet=quiet)
    if follow.result(folder) is None:
        command = f"ffalm federate run {quote(str(name))}{' --local' * local}"
        again = f"stopped, the rounds so far are kept; go on with: {command}"
        _warn(insecure)
        with _undone(lambda: None, again), _all_here(leader, console, insecure) if local else _there(leader):
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
                rounds = _Rounds(console, folder.facts)
                follow.watch(leader, number, rounds.show, rounds.tell)
            except KeyboardInterrupt:
                leader.control.stop(number)
                raise
    else:
        console.print(f"The training has ended already; remove {folder.run} to train anew.", highlight=False)
    _show_result(folder.run, as_json)


@federate.command(epilog="Example: ffalm federate audit hospitals --prediction said --local")
def audit(
    name: _Folder,
    prediction: Annotated[str | None, typer.Option(help="Column of predicted outcomes at every site.")] = None,
    score: Annotated[str | None, typer.Option(help="Column of scores at every site.")] = None,
    decision: Annotated[float, typer.Option(help="Score from which the favourable outcome is predicted.")] = 0.5,
    model: Annotated[Path | None, typer.Option(help="Folder of a trained model, such as this federation's.")] = None,
    fail_if: Annotated[list[str] | None, typer.Option(help="Exit with code 3 if this holds; see ffalm audit.")] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file for the report.")] = None,
    local: Annotated[bool, typer.Option("--local", help="Run the coordinator and all sites on this machine.")] = False,
    insecure: _Insecure = False,
    as_json: _Json = False,
) -> None:
    """Audit predictions, scores or a model over all sites' held-out rows, without training: only counts are sent."""
    from rich.console import Console

    from ffalm.cli.audit_command import finish_audit
    from ffalm.federate.coordinator.federated_audit import AuditRequest, read_audit
    from ffalm.federate.deploy import follow
    from ffalm.federate.deploy.operations import CoordinatorProcess
    from ffalm.federate.federation_config import FederationConfig

    folder, console = _sound_federation(name), Console(stderr=True)
    request = AuditRequest(prediction, score, decision, None if model is None else str(model.resolve()))
    request.check(FederationConfig.read(folder.path / "federation.toml"))
    folder = folder.new_audit()
    request.write(folder.run)
    leader = CoordinatorProcess(folder)
    _warn(insecure)
    with _undone(lambda: None, "stopped"), _all_here(leader, console, insecure) if local else _there(leader):
        number = follow.submit(leader)
        follow.watch(leader, number, lambda _: None, _Rounds(console, folder.facts).tell)
    finish_audit(read_audit(folder.run), fail_if or (), out, as_json)


@federate.command(epilog="Example: ffalm federate status hospitals --json")
def status(name: _Any, as_json: _Json = False) -> None:
    """Show processes on this machine, sites online, the round and the last metrics; for a site, whether it runs."""
    from ffalm.federate.deploy.folder import SiteFolder
    from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess
    from ffalm.federate.deploy.status import seen, site_seen, site_sentence, table

    if (name / "site.toml").is_file():
        own = site_seen(SiteProcess(SiteFolder.find(name)))
        _print_json(own) if as_json else typer.echo(site_sentence(own))
        return
    found = seen(CoordinatorProcess(_federation(name)))
    if as_json:
        _print_json(found)
        return
    from rich.console import Console

    Console(markup=False).print(table(found), highlight=False)


@federate.command(epilog="Example: ffalm federate stop hospitals")
def stop(name: _Any) -> None:
    """Stop every process of a folder on this machine; the training so far is kept."""
    from ffalm.federate.deploy import require_flower

    require_flower()
    from ffalm.federate.deploy.operations import processes_of, stop_all

    require(name.is_dir(), f"There is no folder {name}: name a federation folder, or a site folder.")
    ended = stop_all(processes_of(name))
    typer.echo(f"Ended: {', '.join(ended)}." if ended else f"Nothing of {name} was running here.")


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
    where = f"say in {folder / 'site.toml'} where this site's data is."
    for name in ("file", "folder", "labels"):
        if hasattr(data, name):
            path = folder / Path(getattr(data, name)).expanduser()
            require(path.exists(), f"There is no {path}: {where}")
            require(path.is_dir() == (name == "folder"), f"{path} is no {name.replace('labels', 'file')}: {where}")


def _federation(path: Path) -> Any:
    from ffalm.federate.deploy import require_flower
    from ffalm.federate.deploy.folder import FederationFolder

    require_flower()
    return FederationFolder.find(path)


def _sound_federation(path: Path) -> Any:
    """A federation with valid settings: a mistake in federation.toml is reported before anything starts."""
    from ffalm.federate.federation_config import FederationConfig

    folder = _federation(path)
    FederationConfig.read(folder.path / "federation.toml")
    return folder


def _warn(insecure: bool) -> None:
    if insecure:
        typer.echo(
            "ffalm: warning: --insecure: nothing is encrypted, and anybody who reaches the coordinator may take part.",
            err=True,
        )


@contextmanager
def _undone(undo: Callable[[], object], message: str) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, undo and report it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        undo()
        raise Stopped(message) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _there(leader: CoordinatorProcess) -> Iterator[None]:
    """The coordinator and the sites are started elsewhere."""
    leader.require_running()
    yield


@contextmanager
def _all_here(leader: CoordinatorProcess, console: Console, insecure: bool) -> Iterator[None]:
    """The coordinator and all its sites as processes of this machine; they are always stopped in the end."""
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


class _Rounds:
    """Prints one line per round, once its metrics or the next round are there."""

    def __init__(self, console: Console, facts: dict[str, Any]) -> None:
        self._console = console
        self._rounds = facts.get("training", {}).get("rounds", "?")
        self._shown = 0

    def tell(self, sentence: str) -> None:
        """Print an event about sites."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def show(self, records: list[Record]) -> None:
        """Show the rounds that are new."""
        for record in records[self._shown :]:
            if not {"accuracy", "epsilon"} & record.keys() and record is records[-1]:
                return  # the sites score a round's model in the next; under privacy they never tell
            self._shown += 1
            self._console.print(f"round {record['round']}/{self._rounds}: {_scores(record)}", highlight=False)


def _scores(record: Record) -> str:
    shown = [("accuracy", "acc"), ("dpd", "DPD"), ("eod", "EOD")]
    parts = [f"{short} {100 * record[name]:.1f}" for name, short in shown if record.get(name) is not None]
    for name, digits in (("train_loss", 4), ("epsilon", 2)):
        if record.get(name) is not None:
            parts.insert(0, f"{name.removeprefix('train_')} {record[name]:.{digits}f}")
    return "  ".join([*parts, f"{record['seconds']:.1f} s"])


def _show_result(run: Path, as_json: bool) -> None:
    """Print the tables of results, or everything as JSON; a training that diverged is an error."""
    from rich.console import Console

    from ffalm.cli.answers import show_answer
    from ffalm.federate.coordinator.federation_answer import read_answer
    from ffalm.federate.coordinator.federation_report import summary
    from ffalm.results import Study

    found = parsed_json((run / "result.json").read_text(encoding="utf-8"))
    page = Study.load(run).write_report()["report.html"]
    answered = run / "answer.json"
    if as_json:
        told = parsed_json(answered.read_text(encoding="utf-8")) if answered.exists() else {}
        _print_json({"folder": str(run), **found, **told})
    else:
        typer.echo(summary(run).rstrip())
        answer, obstacles = read_answer(run)
        if answer is not None:
            show_answer(Console(), answer)
        for line in obstacles:
            typer.echo(f"- {line}")
        typer.echo(f"Report: {page} and {run / 'report.md'}")
    if found["diverged"]:
        raise TrainingDiverged(f"The training stopped early. {found['diverged']}")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
