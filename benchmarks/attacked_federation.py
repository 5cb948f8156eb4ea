"""Lying sites in a real federation: a coordinator and ten sites, each with its processes, on loopback.

    python -m benchmarks.attacked_federation --rounds 12 --epochs 2 --rows 6000

The last sites lie in every round by a plugin of their own (`lying_site.py`): the update and its duals, their rows, the
losses that they measured or the scores of the final model. Beside what came of it stands the simulation
(`attacks.py`, `attacked_histograms.py`) over the same sites' rows; a cell is accuracy / DPD in percent of the final
model, for a lie about scores with the answer's thresholds, on everybody's true test rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.federate.makers import Simulated

from benchmarks import attacked_histograms, attacks, lies
from ffalm.config import entry_of
from ffalm.data.census import Census
from ffalm.data.types import Dataset, Examples
from ffalm.engines.jobs import Model
from ffalm.engines.loop import Learner
from ffalm.federate.coordinator.histogram_rules import bounded, farthest
from ffalm.federate.deploy.operations import processes_of, stop_all
from ffalm.federate.deploy.processes import free_port
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.histogram_bytes import PARTS
from ffalm.partition import Partition
from ffalm.targets.repair import Repair

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "benchmarks" / "lying_site.py"
SITES = [f"site-{number + 1}" for number in range(attacks.SITES)]
TRUE_SCORES = "none, with a target"
HONEST = ("none", TRUE_SCORES)
ATTACKS = ("none", *lies.ALONE, TRUE_SCORES, *lies.SCORES)
CELLS = ((1, "none"), (1, "trimmed"), (2, "trimmed"))  # liars and the name of a defence
_UNBOUNDED = 1e300  # the rule `outlier` that rejects nothing
_LABEL = "income-over-50K"


class RealFederation:
    """A coordinator and its sites, up until `close`; run after run with other rules and other liars."""

    def __init__(self, folder: Path, rows: int, rounds: int, epochs: int, seed: int) -> None:
        self.folder, self._runs = folder, 0
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        data = ["--label", _LABEL, "--group", "sex", "--favourable", "yes"]
        training = ["--model", "linear", "--rounds", str(rounds), "--set", f"training.local_epochs={epochs}"]
        names = ["--sites", ",".join(SITES), "--address", f"127.0.0.1:{free_port()}", "--seed", str(seed)]
        self._ffalm("init", folder, *names, *data, *training)
        _deal(folder / "sites", rows, seed)
        self._plan = FederationConfig.read(folder / "federation.toml")
        self._ffalm("coordinator", folder, "--detach")
        starts = [self._start("site", self.site(name), "--detach") for name in SITES]
        for start in starts:
            said = start.communicate()
            assert start.returncode == 0, said

    def site(self, name: str) -> Path:
        """The folder of a site."""
        return self.folder / "sites" / name

    def plan(self, attack: str, liars: int, defence: str) -> FederationConfig:
        """The federation's settings for a run: for lies about scores a target."""
        rule = attacks.DEFENCES[defence]
        rules = replace(
            self._plan.rules,
            aggregation=rule.aggregation,
            liars=max(1, liars),
            max_share=rule.max_share,
            outlier=min(rule.outlier, _UNBOUNDED),
        )
        if not about_scores(attack):
            return replace(self._plan, rules=rules)
        fedavg = entry_of("fedavg", {})
        return replace(self._plan, rules=rules, contender=fedavg, target=attacked_histograms.TARGET)

    def run(self, attack: str, liars: int, defence: str) -> Path:
        """Train from the beginning, and return the folder of the run."""
        self.plan(attack, liars, defence).write(self.folder / "federation.toml")
        with self._lying(attack, SITES[len(SITES) - liars :] if liars else []):
            self._ffalm("run", self.folder, "--quiet")
        self._runs += 1
        return (self.folder / "run").rename(self.folder / f"run-{self._runs}")

    def close(self) -> None:
        """End every process."""
        stop_all(processes_of(self.folder))

    @contextmanager
    def _lying(self, attack: str, liars: list[str]) -> Iterator[None]:
        honest = {self.site(name): (self.site(name) / "site.toml").read_text(encoding="utf-8") for name in liars}
        for folder, settings in honest.items():
            (folder / lies.ATTACK_FILE).write_text(attack, encoding="utf-8")
            named = settings.replace("plugins = []", f"plugins = [{json.dumps(str(PLUGIN))}]")
            assert named != settings
            (folder / "site.toml").write_text(named, encoding="utf-8")
        try:
            yield
        finally:
            for folder, settings in honest.items():
                (folder / "site.toml").write_text(settings, encoding="utf-8")

    def _ffalm(self, *arguments: object) -> None:
        command = self._start(*arguments)
        said = command.communicate()
        assert command.returncode == 0, (arguments, said)

    def _start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "ffalm", "federate", *map(str, arguments)]
        return subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


class Truth:
    """Everybody's true rows, and the simulation of the same federation over them."""

    def __init__(self, federation: RealFederation, plan: FederationConfig, run: Path) -> None:
        self._simulated = Simulated(plan, {name: federation.site(name) for name in SITES}, run)
        self._task, self._min_group = self._simulated.agreement.task, plan.rules.min_group
        self._learner = Learner(self._simulated.job.spec)

    def of_run(self, attack: str, run: Path) -> tuple[float, float]:
        """What the real federation came to."""
        repair = json.loads((run / "repair.json").read_text(encoding="utf-8")) if about_scores(attack) else None
        return self._judged(load_file(run / "model.safetensors"), None if repair is None else Repair.from_plain(repair))

    def of_simulation(self, attack: str, liars: int, defence: str) -> tuple[float, float]:
        """What the simulation comes to."""
        rule = attacks.DEFENCES[defence]
        if not about_scores(attack):
            return self._judged(attacks.trained(self._simulated.job, attack, liars, rule), None)
        model = attacks.trained(self._simulated.job, "none", liars, rule)
        own = {name: self._histograms(model, client) for client, name in enumerate(SITES)}
        for name in SITES[len(SITES) - liars :] if liars else ():
            own[name] = {part: lies.told_scores(one, lies.SCORES[attack]) for part, one in own[name].items()}
        if rule.aggregation != "mean":
            out = farthest(own, max(1, liars))
            own = bounded({name: parts for name, parts in own.items() if name not in out}, rule.max_share)
        return self._judged(model, attacked_histograms.thresholds(own, self._task))

    def _judged(self, model: Model, repair: Repair | None) -> tuple[float, float]:
        test = self._simulated.pooled("test")
        if repair is None:
            return attacks.percent(self._learner.score(model, test), self._task)
        return attacks.percent(repair.tally(self._learner.histogram(model, test)), self._task)

    def _histograms(self, model: Model, client: int) -> attacked_histograms.Parts:
        """What a site tells of its scores."""
        told = {}
        for part, short in PARTS.items():
            rows = self._simulated.parts[client][short]
            tally, histogram = self._learner.score(model, rows), self._learner.histogram(model, rows)
            disclosed = Disclosed.of(tally, self._min_group, histogram, total_known=short == "train")
            assert disclosed.histogram is not None
            told[part] = disclosed.histogram
        return told


def about_scores(attack: str) -> bool:
    """Whether a lie is about the scores of the final model, for which the federation has a target."""
    return attack == TRUE_SCORES or attack in lies.SCORES


def rejected(run: Path, liars: int) -> str:
    """Rounds in which the answers of lying and of honest sites were put in quarantine."""
    lines = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
    found = [name for line in lines for name in json.loads(line)["quarantined"]]
    lying = sum(name in SITES[len(SITES) - liars :] for name in found) if liars else 0
    return f"{lying} + {len(found) - lying}"


def _deal(sites: Path, rows: int, seed: int) -> None:
    """Give each site its table, split as the simulated attacks split theirs."""
    raw = Census(rows=rows, data_seed=seed).read()
    frame = raw.features.assign(**{_LABEL: [raw.task.label_names[label] for label in raw.y]})
    people = Examples(torch.arange(rows), torch.from_numpy(raw.y), torch.from_numpy(raw.group))
    owners = Partition(clients=len(SITES), alpha=5.0).split(Dataset(raw.task, people, people, people), seed)
    for name, owned in zip(SITES, owners, strict=True):
        frame.iloc[owned.numpy()].to_csv(sites / name / "data.csv", index=False)


def main() -> None:
    """Print the table in Markdown, a line as soon as its run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| attack | liars | rules | real processes | simulated | rejected answers: liars' + others' |", flush=True)
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        federation = RealFederation(Path(root) / "attacked", asked.rows, asked.rounds, asked.epochs, asked.seed)
        try:
            for attack in asked.attacks:
                honest = attack in HONEST
                for liars, defence in [(0, "none"), (0, "trimmed")] if honest else CELLS:
                    run = federation.run(attack, liars, defence)
                    truth = Truth(federation, federation.plan(attack, liars, defence), run)
                    real, simulated = truth.of_run(attack, run), truth.of_simulation(attack, liars, defence)
                    pair = " | ".join(f"{accuracy:.1f} / {dpd:.1f}" for accuracy, dpd in (real, simulated))
                    print(f"| {attack} | {liars} | {defence} | {pair} | {rejected(run, liars)} |", flush=True)
        finally:
            federation.close()


if __name__ == "__main__":
    main()
