"""Lying sites against the thresholds of a fairness target: true accuracy and DPD of the answer, with and without rules.

    python -m benchmarks.attacked_histograms --seeds 5

The last sites of ten tell false score histograms of all parts. The rules are the coordinator's own functions
(`aggregation`, `liars`, `max_share`); what counts is the DPD of the chosen thresholds on everybody's true test rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import reduce
from operator import add
from statistics import mean

import torch

import ffalm
from benchmarks import lies
from ffalm.config import entry_of
from ffalm.data.types import Examples, Task
from ffalm.engines import ClientSpec, Job, Training
from ffalm.engines.loop import Learner, LoopClients
from ffalm.engines.server import ServerContext, rounds
from ffalm.fairness import ScoreHistogram
from ffalm.federate.coordinator.histogram_rules import bounded, farthest
from ffalm.models import Linear
from ffalm.simulation import ArchitectureFactory
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.repair import Repair
from ffalm.targets.target import Target

SITES = 10
TARGET = "dpd <= 0.05"
ATTACKS = {"groups far apart": 1, "1 logit": 1, "1/4 logit": 1, "1/4 logit, rows x 1000": 1000,
           "groups far apart, rows x 1000": 1000}  # fmt: skip
"""How many times the rows each lie of `lies.SCORES` claims."""

Parts = dict[str, ScoreHistogram]


def false(true: ScoreHistogram, attack: str) -> ScoreHistogram:
    """What a liar tells of its scores."""
    return lies.told_scores(true, lies.SCORES[attack.partition(",")[0]], ATTACKS[attack])


def trained(seed: int, rows: int) -> tuple[list[Parts], ffalm.Federation]:
    """Each site's true histograms of a model that all have trained."""
    federation = ffalm.load("census", clients=SITES, alpha=5.0, rows=rows, seed=seed)
    task = federation.task
    built = ArchitectureFactory(Linear(), tuple(federation.clients[0].x.shape[1:]), task.labels)
    spec = ClientSpec(entry_of("fedavg", {}).algorithm, built, Training(rounds=10), task, seed, torch.device("cpu"))
    *_, last = rounds(ServerContext.of(Job(spec, federation)), LoopClients(Job(spec, federation)))
    assert federation.validation is not None and federation.test is not None
    parts = {"training": list(federation.clients)}
    for name, rows_of in (("validation", federation.validation), ("test", federation.test)):
        places = torch.arange(len(rows_of)).tensor_split(SITES)
        parts[name] = [Examples(rows_of.x[own], rows_of.y[own], rows_of.group[own]) for own in places]
    learner, model = Learner(spec), last.snapshot.model
    return [
        {name: learner.histogram(model, own[site]) for name, own in parts.items()} for site in range(SITES)
    ], federation


def thresholds(own: Mapping[str, Parts], task: Task) -> Repair:
    """The thresholds of the answer, by the sum of what sites told."""
    pooled = {part: reduce(add, (one[part] for one in own.values())) for part in next(iter(own.values()))}
    run = FinishedRun("fedavg", 0, None, ".", pooled, None)
    answer = answer_of([run], Target.parse(TARGET), "groups", task.group_names, None)
    return Repair.from_plain(answer.best.repair)


def judged(own: Mapping[str, Parts], truth: ScoreHistogram, task: Task) -> tuple[float, float]:
    """Accuracy and DPD of the answer's thresholds on the true rows, in percent."""
    metrics = thresholds(own, task).tally(truth).metrics(task.favourable)
    return 100 * metrics["accuracy"], 100 * metrics["dpd"]


def main() -> None:
    """Print the table in Markdown: means over seeds, and the largest DPD."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, int], list[tuple[float, float, float, float]]] = {}
    for seed in range(asked.seeds):
        true, federation = trained(seed, asked.rows)
        truth = reduce(add, (one["test"] for one in true))
        for attack, liars in [("none", 0), *((attack, liars) for attack in ATTACKS for liars in (1, 2))]:
            own = {str(site): parts for site, parts in enumerate(true)}
            for site in range(SITES - liars, SITES):
                own[str(site)] = {part: false(one, attack) for part, one in true[site].items()}
            out = farthest(own, max(1, liars))
            kept = bounded({site: parts for site, parts in own.items() if site not in out}, 0.2)
            pair = (*judged(own, truth, federation.task), *judged(kept, truth, federation.task))
            found.setdefault((attack, liars), []).append(pair)
    print("| told | liars | accuracy / DPD without rules | largest DPD | with the rules | largest DPD |")
    print("|---|---|---|---|---|---|")
    for (attack, liars), values in found.items():
        before, dpd, after, dpd_after = zip(*values, strict=True)
        print(
            f"| {attack} | {liars} | {mean(before):.1f} / {mean(dpd):.1f} | {max(dpd):.1f} | {mean(after):.1f} / "
            f"{mean(dpd_after):.1f} | {max(dpd_after):.1f} |"
        )


if __name__ == "__main__":
    main()
