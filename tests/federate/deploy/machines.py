"""Real federations on loopback: coordinator and sites as the processes they are, all of them gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests.cli.conftest import start
from tests.federate.makers import Simulated
from torch import Tensor

from ffalm.blind_mode import BlindModel, group_model
from ffalm.cli import run
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.operations import CoordinatorProcess, SiteProcess, processes_of, stop_all
from ffalm.federate.deploy.processes import FlowerProcess, free_port
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.histogram_bytes import PARTS
from ffalm.federation import Federation
from ffalm.simulation import rebuilt
from ffalm.targets.candidates import BlindFit, FinishedRun, answer_of
from ffalm.targets.target import Target

#: Sites of so few rows would withhold their mean training losses, which are compared with the simulation's.
SMALL = (
    *("--demo", "census", "--rows", "600", "--model", "linear"),
    *("--set", "training.batch_size=32", "--set", "rules.min_group=1"),
)
PATIENCE = 240.0


class Machines:
    """One federation folder, the commands on it, and what they leave running."""

    def __init__(self, root: Path) -> None:
        self.path = root / "fed"
        self._root = root
        self._commands: list[subprocess.Popen[str]] = []
        self._strangers: list[FlowerProcess] = []

    def init(self, *flags: object) -> None:
        """Make a small federation on a free port."""
        address = f"127.0.0.1:{free_port()}"
        assert here("init", self.path, *SMALL, "--address", address, *flags) == 0

    @property
    def folder(self) -> FederationFolder:
        return FederationFolder.find(self.path)

    @property
    def coordinator(self) -> CoordinatorProcess:
        return CoordinatorProcess(self.folder)

    def site(self, name: str) -> SiteProcess:
        return SiteProcess(SiteFolder.find(self.path / "sites" / name))

    def ffalm(self, *arguments: object) -> tuple[int, str, str]:
        """A command to its end: exit code, output, errors."""
        process = self.background(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def background(self, *arguments: object) -> subprocess.Popen[str]:
        """A command that goes on."""
        process = start("federate", *arguments)
        self._commands.append(process)
        return process

    def bring_up(self) -> None:
        """The coordinator and all sites, detached."""
        code, _, said = self.ffalm("coordinator", self.path, "--detach")
        assert code == 0, said
        starting = [self.background("site", self.folder.site(name), "--detach") for name in self.folder.sites]
        for process in starting:
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, said

    def stranger(self, folder: Path, command: list[str]) -> FlowerProcess:
        """A process that is none of the federation's own."""
        process = FlowerProcess(folder, "stranger")
        self._strangers.append(process)
        process.start(command)
        return process

    def history(self) -> list[dict[str, Any]]:
        file = self.folder.run / "history.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder.run / "result.json").read_text())
        return found

    def sites(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder.run / "sites.json").read_text())["sites"]
        return found

    def close(self) -> None:
        """End everything, and see that nothing is left: no process, and nobody on the port."""
        if not self.path.exists():
            return
        processes = processes_of(self.path)
        stop_all(processes)
        stop_all(dict(zip(map(str, self._strangers), self._strangers, strict=True)))
        for command in self._commands:
            if command.poll() is None:
                command.kill()
            command.communicate()
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        left = {who: process.family() for who, process in processes_of(self.path).items()}
        assert not any(left.values()), left
        socket.create_server(self.folder.address).close()


def here(*arguments: object) -> int:
    """The exit code of a command that starts nothing, run in this process."""
    return run(["federate", *map(str, arguments)])


def until(true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def kill(process: FlowerProcess) -> None:
    """What a power cut does to a machine: every process of the folder is gone at once."""
    for pid in process.family():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not process.family(), "the killed processes are gone", 20)


def assert_equals_simulation(machines: Machines) -> None:
    """The run came to the numbers of a simulation in which the same sites missed the same rounds."""
    folder = machines.folder
    plan = FederationConfig.read(folder.path / "federation.toml")
    history = machines.history()
    missing = {
        (record["round"], plan.sites.index(site))
        for record in history
        for site in plan.sites
        if site not in record["answered"]
    }
    simulated = Simulated(plan, {name: folder.site(name) for name in plan.sites}, folder.run)
    expected = simulated.rounds(missing, known=known_clients(plan, history))
    assert len(history) == len(expected) == plan.training.rounds
    for mine, theirs in zip(history, expected, strict=True):
        assert mine["round"] == theirs.record["round"]
        mine["weights"] += [0.0] * (len(plan.sites) - len(mine["weights"]))  # of sites that were added later
        for name in ("weights", "train_loss", *theirs.snapshot.state):
            assert torch.allclose(
                torch.tensor(mine[name], dtype=torch.float64),
                torch.as_tensor(theirs.record[name], dtype=torch.float64),
                rtol=1e-6,
                atol=1e-9,
            ), (mine["round"], name)
    final, model = load_file(folder.run / "model.safetensors"), expected[-1].snapshot.model
    for name, value in model.items():
        assert torch.allclose(final[name], value, rtol=1e-6, atol=1e-7), name
    told = [site["client"] for site in machines.sites() if site["rows"] is not None and not site.get("no_histograms")]
    if plan.target is not None:
        scores = {part: simulated.histogram(model, sent, told) for part, sent in PARTS.items()}
        run = FinishedRun(plan.contender.label, plan.seed, None, ".", scores, _blind(plan, simulated, model))
        answer = answer_of([run], Target.parse(plan.target), plan.repair, simulated.agreement.task.group_names)
        written = json.loads((folder.run / "repair.json").read_text())
        assert {name: value for name, value in written.items() if name != "checksum"} == answer.best.repair


def known_clients(plan: FederationConfig, history: list[dict[str, Any]]) -> list[list[int]]:
    """The clients whose rows the coordinator knew in each round: a site may introduce itself when others have begun."""
    return [[plan.sites.index(site) for site in record["known"]] for record in history]


def _blind(plan: FederationConfig, simulated: Simulated, model: dict[str, Tensor]) -> BlindFit | None:
    """The simulation's blind rules, where the federation has them."""
    if not plan.blind:
        return None
    clients = tuple(own["train"] for own in simulated.parts)
    validation, test = (simulated.pooled(part) for part in ("validation", "test"))
    federation = Federation(clients, validation, test, simulated.agreement.task)
    settings: Any = {**asdict(plan.training), "model": plan.model, "engine": "loop", "device": "cpu"}
    groups = group_model(federation, seed=plan.seed, **settings)
    rules = BlindModel(rebuilt(model, federation, settings), groups, federation)
    return lambda target, level: rules.fit(target, level).candidate_run(plan.seed, ".")
