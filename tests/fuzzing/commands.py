"""Random command lines, run in this process up to the first round of training."""

from __future__ import annotations

import importlib.util
import io
import os
import random
import shlex
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.fuzzing.outcomes import Hang, Outcome, limited, place_of
from tests.fuzzing.values import path, text

COMMANDS = (
    "run", "compare", "data check", "data describe", "data get", "report", "reproduce", "federate init", "algorithms",
    "audit", "predict", "card", "export", "settings", "models",
)  # fmt: skip
_FOLDERS = (
    "federate audit",
    "federate status",
    "federate stop",
    "federate run",
    "federate site",
    "federate coordinator",
    "federate doctor",
    "federate upgrade",
)
_TINY = ("--rounds", "1", "--set", "data.rows=300", "--clients", "2", "--workers", "1", "--quiet")
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
    command = draws.choice((*COMMANDS, *COMMANDS[:3] * 4, *_FOLDERS))
    arguments = command.split()
    if command in _FOLDERS or command == "report":
        return [*arguments, path(draws, here, number), *draws.choice(([], ["--json"], ["--x"]))]
    if command in ("predict", "card", "export"):
        folder = path(draws, here, number)
        return [command, folder] if command == "card" else [command, folder, path(draws, here, number)]
    if command == "audit":
        arguments += [draws.choice((f"{here}/good.csv", path(draws, here, number)))]
        for flag in ("--label", "--group", "--prediction", "--score", "--favourable", "--decision", "--min-group"):
            if flag in ("--label", "--group") or draws.random() < 0.4:
                arguments += [flag, draws.choice(("a", "sex", "paid", "1", "m", text(draws)))]
        return [*arguments, *draws.choice(([], ["--json"], ["--fail-if", text(draws)]))]
    if command == "data get":
        return [*arguments, draws.choice(("adul", "", "\x1b", "x" * 5000)), "--root", path(draws, here, number)]
    if command in ("data describe", "settings"):
        return [*arguments, text(draws)]
    if command == "algorithms":
        return [*arguments, *draws.choice(([], [text(draws)], ["--plugin", path(draws, here, number)]))]
    if command == "models":
        return [*arguments, *draws.choice(([], ["--json"], ["--x"]))]
    if command == "federate init":
        arguments += [path(draws, here, number), "--rows", draws.choice(("300", "300", text(draws)))]
        arguments += draws.choice(([], ["--demo", "census"], ["--demo", "census"], ["--demo", text(draws)]))
        arguments += draws.choice(([], ["--sites", "north,south"], ["--sites", text(draws)]))
    elif command == "reproduce":
        target = draws.choice(("table-2", "figure-2", "sensitivity", "frontier", text(draws)))
        arguments += [target if target not in ("example", "rate", "all") else "x", "--scale", "smoke"]
    elif command in ("run", "compare"):
        arguments += _TINY
        arguments += draws.choice(([], [], [], ["--out", path(draws, here, number)]))
        arguments += draws.choice(([], [], [], [], [], ["--resume"]))
    names = [name for name in _flag_names(command) if name not in ("out", "resume", "rows", "demo", "sites", "scale")]
    for name in draws.sample(names, min(len(names), draws.choice((0, 0, 1, 2)))):
        flag = f"--{name.replace('_', '-')}"
        if name == "set":
            continue
        if name in ("json", "quiet", "fresh_data"):
            arguments += [flag]
        elif name == "ray":
            continue
        else:
            files = name in ("config", "plugin", "root", "data", "data_root")
            arguments += [flag, path(draws, here, number) if files and draws.random() < 0.7 else text(draws)]
    settings = _OF_FEDERATIONS if command == "federate init" else _SETTINGS
    if "set" in names or command == "federate init":
        for _ in range(draws.choice((0, 1, 1, 1, 2, 3))):
            value = path(draws, here, number) if draws.random() < 0.1 else text(draws)
            arguments += ["--set", f"{draws.choice(settings)}={value}" if draws.random() < 0.97 else text(draws)]
    return arguments


def _flag_names(command: str) -> list[str]:
    from ffalm.cli.data_commands import _CHECK
    from ffalm.cli.reproduce import _OWN, _running
    from ffalm.cli.study_commands import _compare_flags, _run_flags

    own = (
        "address",
        "data",
        "label",
        "group",
        "favourable",
        "algorithm",
        "preset",
        "model",
        "rounds",
        "seed",
        "config",
    )
    flags: dict[str, list[str]] = {
        "run": [flag.name for flag in _run_flags()],
        "compare": [flag.name for flag in _compare_flags()],
        "data check": [flag.name for flag in _CHECK],
        "reproduce": [flag.name for flag in (*_OWN, *_running()) if flag.name != "target"],
        "federate init": list(own),
    }
    return flags.get(command, [])


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
    return arguments[0] in ("run", "compare") and not any(word in own for word in longer)


def outcome_of_command(arguments: list[str], train: bool = False) -> Outcome:
    """The exit code is 0, 2 or, of a training that diverged, 4; without success there is one sentence of one line."""
    from ffalm import cli

    seen: list[BaseException] = []

    def note(*_: object, **__: object) -> None:
        error = __import__("sys").exc_info()[1]
        if error is not None:
            seen.append(error)

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    try:
        with ExitStack() as around:
            around.enter_context(limited())
            around.enter_context(redirect_stdout(out))
            around.enter_context(redirect_stderr(err))
            around.enter_context(patch.object(traceback, "print_exc", note))
            around.enter_context(stubbed("results.Study.write_report" if train else "study.Begun.compute"))
            code = cli.run(arguments)
    except _Accepted:
        return Outcome(True, "accepted")
    except Hang as error:
        return Outcome(False, "hang", place_of(error))
    except BaseException as error:
        return Outcome(False, "escaped", place_of(error))
    said = err.getvalue()
    if code == 0:
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
    train = draws.random() < 0.3 and _short(arguments)
    return outcome_of_command(arguments, train), shlex.join(arguments).replace(str(here), "HERE")
