"""The answer to a federation's fairness target, which is that of a study of one run: `answer.json`, and the thresholds
in `repair.json`, which `ffalm.load_model` applies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.federation_config import FederationConfig
from ffalm.report import answer_file
from ffalm.report.tables import Column, Section, Table, row
from ffalm.studies.checksums import with_checksum
from ffalm.studies.results import Study
from ffalm.system.files import write_atomic
from ffalm.targets.answer import Answer
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.repair import REPAIR
from ffalm.targets.site_answers import with_sites
from ffalm.targets.stored_rules import StoredRules
from ffalm.targets.target import Target

_METRICS = {"accuracy": "accuracy", "dpd": "DPD", "eod": "EOD"}


def site_facts(
    config: FederationConfig,
    task: Task,
    histograms: HistogramSum,
    absent: Mapping[str, str],
    rules: StoredRules | None = None,
) -> dict[str, dict[str, Any]]:
    """For `sites.json`: each site's own test metrics with the answer's thresholds, or why its scores are not in it.

    For a blind rule the coordinator keeps only sums of counts, so its metrics are for all sites together.
    """
    if config.target is None:
        return {}
    facts: dict[str, dict[str, Any]] = {
        site: {"no_histograms": reason} for site, reason in {**absent, **histograms.missing}.items()
    }
    if not histograms.own or "validation" not in histograms.parts:
        return facts
    blind = None if rules is None else lambda target, level: rules.judged(target, level).candidate_run(config.seed, ".")
    run = FinishedRun(config.contender.label, config.seed, None, ".", histograms.parts, blind)
    answer = answer_of([run], Target.parse(config.target), config.repair, task.group_names, config.confidence)
    if answer.chosen.kind == "blind":
        return facts
    answer = with_sites(answer, histograms.own, config.scope, config.repair, task.group_names)
    return facts | {one.site: {"repaired": one.after.metrics} for one in answer.sites}


def answer_notes(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes on sites and rows whose scores are not in the answer, from `sites.json`."""
    notes = []
    for site in sites:
        if site.get("no_histograms"):
            reason = str(site["no_histograms"]).rstrip(".")
            notes.append(f"The scores of the site {site['name']!r} are not in this answer ({reason}).")
        elif site["withheld"].get("validation"):
            cells = "; ".join(site["withheld"]["validation"])
            notes.append(
                f"The site {site['name']!r} withholds cells of its held-out rows that are too small to be sent "
                f"({cells}): thresholds are fitted to the other rows."
            )
    return notes


def read_answer(folder: Path) -> tuple[Answer | None, list[str]]:
    """The answer of a finished run to its target, or notes on why there is none; without a target, neither."""
    study = Study.load(folder)
    if study.record.target is None:
        return None, []
    try:
        return study.answer(), []
    except UserError as error:
        return None, [f"The target {study.record.target} has no answer: {error}", *study.record.answer_notes]


def write_answer(folder: Path, answer: Answer | None) -> None:
    """Write `answer.json` and `repair.json`, or delete those of an earlier target if there is no answer."""
    if answer is None:
        (folder / "answer.json").unlink(missing_ok=True)
        (folder / REPAIR).unlink(missing_ok=True)
        return
    write_atomic(folder / "answer.json", answer_file([answer]))
    write_atomic(folder / REPAIR, with_checksum(answer.best.repair))


def each_site(sites: Sequence[Mapping[str, Any]], title: str = "") -> Table | None:
    """Each site's own test metrics as trained and with the answer's thresholds, where they are known."""
    rows = [
        row(site["name"], *(_number(site[part][name]) for name in _METRICS for part in ("test", "repaired")))
        for site in sites
        if site.get("repaired") and site["test"]
    ]
    columns = [Column(part, "percent", 1, over=head) for head in _METRICS.values() for part in ("as trained", "answer")]
    return Table(title, [Column("Site"), *columns], [Section(rows)]) if rows else None


def _number(value: float | None) -> float:
    """An undefined metric, which JSON has as null, is NaN."""
    return math.nan if value is None else value
