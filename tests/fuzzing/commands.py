"""Random command lines, run in this process up to the first round of training."""

from __future__ import annotations

import importlib.util
import inspect
import io
import os
import random
import shlex
import traceback
import typing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.fuzzing.outcomes import Hang, Outcome, limited, place_of
from tests.fuzzing.values import CONDITIONS, TARGETS, path, text

_TINY = ("--rounds", "1", "--set", "data.rows=300", "--clients", "2", "--workers", "1", "--quiet")
_STUDIES = ("run", "compare", "sweep")
_OFTEN = (*_STUDIES, "data check", "audit", "repair", "predict", "federate init")
_SKIPPED = ("ray", "track", "rows", "demo")  # flags that would start a cluster, write elsewhere or take minutes
_SETTINGS = (
    "seeds", "keep", "engine", "device", "precision", "channels_last", "compiled", "fresh_data", "checkpoint_every",
    "workers", "plugins", "data", "data.source", "data.rows", "data.file", "data.label", "data.group", "data.root",
    "data.favourable", "data.validation", "data.data_seed", "data.size", "data.drop", "partition", "partition.kind",
    "partition.clients", "partition.alpha", "partition.min_rows", "model", "model.name", "model.hidden",
    "model.weights", "model.width", "training", "training.lr", "training.rounds", "training.batch_size",
    "training.local_epochs", "training.clip", "training.lr_decay", "training.lr_step", "training.participation",
    "training.optimizer", "training.momentum", "training.weight_decay", "training.local_steps", "privacy",
    "privacy.noise", "privacy.clip", "privacy.delta", "privacy.tally_noise", "algorithms", "algorithms.ffalm",
    "algorithms.ffalm.preset", "algorithms.ffalm.name", "algorithms.ffalm.penalty", "algorithms.ffalm.dual_lr",
    "algorithms.fedavg", "algorithms.fedprox.mu", "algorithms.fairfed.metric", "algorithms.x.name", "algorithms.a/b",
    "x", "", ".", "a.b.c.d", "data.", ".rows", "training.lr.x", "left_out", "model.name.x", "algorithms..name",
)  # fmt: skip
_OF_FEDERATIONS = (
    "rules", "rules.min_sites", "rules.secure", "sites", "name", "address", "algorithm", "algorithm.name", "secure",
    "seed", "secure.threshold", "data", "data.source", "data.label", "data.x", "model", "model.name", "model.hidden",
    "training", "training.lr", "training.rounds", "privacy", "privacy.noise", "plugins", "algorithm.preset", "x",
    "removed", "logs.keep", "logs.max_megabytes", "metrics.port",
)  # fmt: skip


def has_flower() -> bool:
    """Whether `ffalm federate` can be tried."""
    return importlib.util.find_spec("flwr") is not None


_FILES = ("file", "folder", "data", "root", "config", "plugin", "out", "data_root", "test", "choices")
#: Folders that a command could do something with.
_FOLDERS = {
    **dict.fromkeys(("predict", "card", "export", "report", "watch"), ("HERE/study", "HERE/study", "HERE/study/runs")),
    **dict.fromkeys(("federate status", "federate stop", "federate run", "federate audit"), ("HERE/federation",)),
    "federate site": ("HERE/federation/sites/north",),
    "federate coordinator": ("HERE/federation",),
}
#: What somebody might give for an option.
_USUAL: dict[str, tuple[str, ...]] = {
    "label": ("paid", "paid", "sex", "a"),
    "group": ("sex", "sex", "a", "sex,a", "paid"),
    "prediction": ("paid", "a", "sex"),
    "score": ("a", "a", "paid"),
    "favourable": ("1", "0", "m", "yes", "1.0"),
    "id": ("a", "sex"),
    "target": TARGETS,
    "at": TARGETS,
    "fail_if": CONDITIONS,
    "repair": ("none", "single", "groups", "randomised", "blind"),
    "metric": ("dpd", "eod", "accuracy"),
    "over": ("tolerance=0,0.1", "tolerance=", "=", "x=1", "penalty=nan,inf", "ffalm.penalty=1,[1]", "tolerance=0,0"),
    "algorithm": ("fedavg", "ffalm", "lagrangian", "fairfed", "fedavg,ffalm"),
    "algorithms": ("fedavg", "ffalm,fedavg", "lagrangian", "ffalm"),
    "cells": ("census", "adult", ";", "adult;compas"),
    "methods": ("fedavg", "ffalm", ","),
    "board": ("tables", "HERE"),
    "states": ("CA", "CA,TX", "all", "XX", ","),
    "sites": ("north,south", "2", "a,a", "north,../x", ","),
    "file": ("new.csv", "new.onnx"),
}


class _Accepted(BaseException):
    """The command line was taken; training would begin now."""


def prepare_files(here: Path) -> None:
    """Files that command lines name: good ones, and ones broken in every way."""
    rows = "\n".join(f"{i % 7},{'mf'[i % 2]},{i % 3 % 2}" for i in range(200))
    (here / "good.csv").write_text(f"a,sex,paid\n{rows}\n")
    (here / "good.toml").write_text("seeds = [0]\n[data]\nsource = 'census'\nrows = 300\n[algorithms.fedavg]\n")
    (here / "types.toml").write_text("seeds = 'x'\nalgorithms = 3\ndata = [1]\n")
    (here / "deep.toml").write_text(f"a = {'[' * 3000}{']' * 3000}\n")
    (here / "digits.toml").write_text(f"seeds = [{'9' * 5000}]\n")
    (here / "good.py").write_text("import ffalm\n")
    (here / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (here / "raises.py").write_text("raise ValueError('a\\nb')\n")
    (here / "none.py").write_text("\x00")
    (here / "empty").write_text("")
    noise = random.Random(0).randbytes(2000)
    (here / "noise.bin").write_bytes(noise)
    (here / "noise.csv").write_bytes(noise)
    for name in ("folder", "folder.csv"):
        (here / name).mkdir(exist_ok=True)
    if not (here / "loop").is_symlink():
        (here / "loop").symlink_to(here / "loop")
        os.mkfifo(here / "pipe")


def command_line(draws: random.Random, here: str, number: int) -> list[str]:
    """A command with random flags, settings and files."""
    known = commands()
    name = draws.choice((*known, *(name for name in _OFTEN * 4 if name in known)))
    words = name.split()
    if name in _STUDIES:
        words += _TINY
    if name == "federate init":
        words += [
            "--rows",
            "300",
            *draws.choice(([], ["--demo", "census"], ["--demo", "census"], ["--demo", text(draws)])),
        ]
    if name == "reproduce":
        words += ["--scale", "smoke"]
    for one in known[name]:
        if one.param_type_name == "argument":
            words += [value_of(draws, one, name, here, number)] if one.required or draws.random() < 0.8 else []
        elif one.required and draws.random() < 0.97:
            words += [one.opts[0], value_of(draws, one, name, here, number)]
    options = [one for one in known[name] if one.param_type_name == "option" and one.name not in _SKIPPED]
    options = [one for one in options if f"--{one.name}" not in words and one.name != "scale"]
    for one in draws.sample(options, min(len(options), draws.choice((0, 0, 1, 2, 3)))):
        flag = draws.choice(one.opts)
        if one.is_flag:
            words += [flag]
        elif one.name in ("set", "set_"):
            words += [flag, _assignment(draws, name, here, number)]
        else:
            words += [flag, value_of(draws, one, name, here, number)]
    if any(one.name in ("set", "set_") for one in options):
        for _ in range(draws.choice((0, 1, 1, 2))):
            words += ["--set", _assignment(draws, name, here, number)]
    return words


@cache
def command_tree() -> Any:
    """All commands as click knows them, which takes a while to build."""
    import typer

    from ffalm import cli
    from ffalm.cli.flags import prepare

    prepare(["run", "compare", "sweep", "check", "reproduce", "init"])
    return typer.main.get_command(cli.app)


@cache
def _every_command() -> dict[str, Any]:
    """Every command that can be tried, by its name."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        below = getattr(command, "commands", {})
        for name, one in below.items():
            walk(one, f"{path} {name}".strip())
        if not below:
            found[path] = command

    walk(command_tree(), "")
    return {name: found[name] for name in found if has_flower() or not name.startswith("federate")}


def commands() -> dict[str, list[Any]]:
    """The arguments and options of every command by its name."""
    return {name: command.params for name, command in _every_command().items()}


@cache
def paths_of(command: str) -> frozenset[str]:
    """The arguments and options of a command that are paths, by the signature of the function that it runs.

    Typer's own parameters say it too, but each version in another way: up to 0.28 as click's `type`.
    """
    parameters = inspect.signature(_every_command()[command].callback, eval_str=True).parameters
    return frozenset(name for name, one in parameters.items() if _is_path(one.annotation))


def _is_path(hint: Any) -> bool:
    """Whether a type hint, such as `Annotated[Path | None, ...]`, allows a path."""
    return hint is Path or any(map(_is_path, typing.get_args(hint)))


def value_of(draws: random.Random, one: Any, command: str, here: str, number: int) -> str:
    """Something for an argument or option: what it takes, a file of some kind, or a hostile text."""
    files = one.name in paths_of(command) or one.name in _FILES
    if command == "data get" and one.name == "name":
        return draws.choice(("adul", "", "\x1b", "x" * 5000, "acs"))
    if one.name == "target" and command == "reproduce":
        target = draws.choice(("table-2", "figure-2", "sensitivity", "frontier", text(draws)))
        return target if target not in ("example", "rate", "all") else "x"
    if one.name in _USUAL and draws.random() < 0.7:
        return draws.choice(_USUAL[one.name])
    if files and draws.random() < 0.9:
        return (
            draws.choice(_FOLDERS[command]).replace("HERE", here)
            if command in _FOLDERS and draws.random() < 0.5 and one.name in ("model", "folder", "name")
            else path(draws, here, number)
        )
    return text(draws)


def _assignment(draws: random.Random, command: str, here: str, number: int) -> str:
    settings = _OF_FEDERATIONS if command == "federate init" else _SETTINGS
    value = path(draws, here, number) if draws.random() < 0.1 else text(draws)
    return f"{draws.choice(settings)}={value}" if draws.random() < 0.97 else text(draws)


def train(here: Path) -> Path:
    """The folder of a study of one small model, trained at the first call."""
    folder = here / "study"
    if not folder.exists():
        flags = ("--label", "paid", "--group", "sex", "--favourable", "1", "--clients", "2", "--rounds", "1", "--quiet")
        words = ["compare", "--data", str(here / "good.csv"), *flags, "--algorithms", "fedavg,fedprox", "--seeds", "1"]
        _quietly([*words, "--out", str(folder), "--workers", "1", "--model", "linear"])
    return folder


def _found(federation: Path) -> None:
    """Make a federation folder at the first call."""
    if not federation.exists():
        _quietly(["federate", "init", str(federation), "--demo", "census", "--rows", "300", "--sites", "north,south"])


def _quietly(words: list[str]) -> None:
    from ffalm import cli

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        assert cli.run(words) == 0, said.getvalue()


#: Where a command would begin to train, serve, start processes or download.
_BEGINNINGS = (
    "system.loopback_server.LoopbackServer.serve_forever",
    "data.download._opened",
    "leaderboard.board_runs.run_board",
    "federate.deploy.operations.CoordinatorProcess.start",
    "federate.deploy.operations.SiteProcess.start",
)


@contextmanager
def stubbed(name: str) -> Iterator[None]:
    """Nothing is computed from this function on."""

    def accepted(*_: object, **__: object) -> Any:
        raise _Accepted

    with patch(f"ffalm.{name}", accepted):
        yield


def _short(arguments: list[str]) -> bool:
    """Whether training would take a second at most: nothing asks for more than the tiny settings do."""
    longer = ("rounds", "local", "model", "size", "data.rows", "workers", "engine", "seeds", "faces")
    own = " ".join(arguments[len(_TINY) + 1 :])
    return arguments[:1] != ["sweep"] and arguments[0] in _STUDIES and not any(word in own for word in longer)


def outcome_of_command(arguments: list[str], trains: bool = False) -> Outcome:
    """The exit code is 0, 2, of an audit's condition 3 or, of a training that diverged, 4.

    Where it is 2 or 4 there is one sentence of one line.
    """
    from ffalm import cli

    seen: list[BaseException] = []

    def note(*_: object, **__: object) -> None:
        error = __import__("sys").exc_info()[1]
        if error is not None:
            seen.append(error)

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    tree = command_tree()
    try:
        with ExitStack() as around:
            around.enter_context(limited())
            around.enter_context(patch("typer.main.get_command", lambda _: tree))
            around.enter_context(redirect_stdout(out))
            around.enter_context(redirect_stderr(err))
            around.enter_context(patch.object(traceback, "print_exc", note))
            last = "results.Study.write_report" if trains else "study.OpenStudy.compute"
            around.enter_context(stubbed(f"studies.{last}"))
            for beginning in _BEGINNINGS if has_flower() else _BEGINNINGS[:3]:
                around.enter_context(stubbed(beginning))
            code = cli.run(arguments)
    except _Accepted:
        return Outcome(True, "accepted")
    except Hang as error:
        return Outcome(False, "hang", place_of(error))
    except BaseException as error:
        return Outcome(False, "escaped", place_of(error))
    said = err.getvalue()
    if code == 0 or (code == 3 and {"audit", "doctor"} & set(arguments)):
        return Outcome(True, "done")
    if code in (2, 4):
        lines = [line for line in said.splitlines() if line.startswith("ffalm: ") and "warning" not in line]
        plain = all(character.isprintable() or character == "\n" for character in said)
        fine = len(lines) == 1 and said.count("\n") == len(said.splitlines()) and plain
        return Outcome(fine, "refused" if fine else "not one sentence", "" if fine else repr(said[:120]))
    return Outcome(False, f"exit code {code}", place_of(seen[-1]) if seen else repr(said[-200:]))


def run(number: int, seed: int, here: Path) -> tuple[Outcome, str]:
    """One case by its number."""
    draws = random.Random(f"{seed}-{number}")
    arguments = command_line(draws, str(here), number)
    trains = draws.random() < 0.3 and _short(arguments)
    if any(f"{here}/study" in word for word in arguments):
        train(here)
    if any(f"{here}/federation" in word for word in arguments):
        _found(here / "federation")
    return outcome_of_command(arguments, trains), shlex.join(arguments).replace(str(here), "HERE")
