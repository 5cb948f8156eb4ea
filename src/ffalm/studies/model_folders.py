"""`ffalm.load_model`: the trained model in the folder of a run, a study, a federation or a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffalm.engines import ModelFactory
from ffalm.errors import UserError, look_up, require
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.models import Architecture
from ffalm.outcome import Outcome
from ffalm.studies.describe import RECORD
from ffalm.studies.results import Study
from ffalm.studies.store import RunFolder
from ffalm.system.files import path_of
from ffalm.targets.answer import Answer, Part
from ffalm.targets.candidates import judged
from ffalm.targets.repair import GROUPS, Repair
from ffalm.targets.target import Target
from ffalm.trained_models.model_facts import ModelFacts
from ffalm.trained_models.trained_model import ENCODING, FACTS, TrainedModel


def load_model(
    folder: str | Path,
    *,
    alpha: float | None = None,
    site: str | None = None,
    model: ModelFactory | Architecture | None = None,
) -> TrainedModel:
    """The trained model in a folder, ready for new rows.

    - of a study: the model that answers its fairness target, with its thresholds (`alpha` says which answer of a study
      of several skews, `site` whose thresholds where sites have their own); without a target, the model of its only
      run;
    - of a run or a federation: its model, with the thresholds of the answer where it was chosen;
    - of a model that was saved: that one.

    `model` is the function that makes the module, for models of a user's own.
    """
    place = path_of(folder)
    require(place.is_dir(), f"There is no folder {place}.")
    if (place / FACTS).exists():
        _refuse_site(place, site)
        _refuse_alpha(place, alpha)
        return TrainedModel.read(place, model)
    if not (place / ENCODING).exists() and (place / "run" / ENCODING).exists():
        place = place / "run"  # of a federation
    if (place / RECORD).exists():
        return _of_study(Study.load(place), alpha, site, model)
    _refuse_site(place, site)
    found = TrainedModel.read(place, model)
    study: Study | None
    try:
        study = Study.load(place)  # of a run within a study's folder
    except UserError:
        study = None
    if study is None or not study.results:
        _refuse_alpha(place, alpha)
        return found
    _refuse_alpha(place, alpha, study.results[0].alpha)
    return _with_facts(found, study, study.results[0])


def _refuse_site(folder: Path, site: str | None) -> None:
    require(site is None, f"The model in {folder} has the same thresholds at every site: leave the site out.")


def _refuse_alpha(folder: Path, alpha: float | None, own: float | None = None) -> None:
    """Refuse another skew than that of the only model in a folder."""
    of_skew = "" if own is None else f" of alpha {own:g}"
    require(alpha in (None, own), f"The folder {folder} holds one model{of_skew}: leave alpha out.")


def _of_study(
    study: Study, alpha: float | None, site: str | None, model: ModelFactory | Architecture | None
) -> TrainedModel:
    """The model that answers a study's target, or its only one."""
    require(bool(study.results), f"No run in {study.folder} is finished yet: resume it first.")
    single = len(study.results) == 1
    if study.record.target is None or study.record.scope == "federation":
        _refuse_site(study.folder, site)
    if single and len(study.record.runs) <= 1:
        _refuse_alpha(study.folder, alpha, study.results[0].alpha)
    if single and study.record.scope == "federation" and study.results[0].place in (".", "run"):
        found = TrainedModel.read(study.folder / study.results[0].place, model)
        if found.repair is not None or found.rule is not None or study.record.target is None:
            return _with_facts(found, study, study.results[0])
    if study.record.target is None:
        require(
            single,
            f"The study in {study.folder} has {len(study.results)} runs and no fairness target, so none is its answer: "
            f"name the folder of a run, such as {study.folder / study.results[0].place}.",
        )
        return _with_facts(TrainedModel.read(study.folder / study.results[0].place, model), study, study.results[0])
    left = len(study.record.runs) - len(study.results)
    require(
        left == 0,
        f"{left} of the {len(study.record.runs)} runs in {study.folder} are not finished, and the answer may be "
        "one of them: resume it first, or name the folder of a run.",
    )
    kept = _kept_blind_rule(study, alpha, model)
    if kept is not None:
        _refuse_site(study.folder, site)
        return kept
    answer = study.answer(alpha=alpha)
    best = answer.best
    run = next(one for one in study.results if one.place == best.run)
    found = TrainedModel.read(study.folder / best.run, model)
    if answer.chosen.kind == "blind":  # of a study without a report, or of an earlier version: its rows are there
        _refuse_site(study.folder, site)
        ruled = study.blind_model(run).fit(answer.target, best.validation.level)
        found = replace(found, repair=None, rule=ruled.rule, groups=ruled.group_model.network)
        return replace(found, facts=facts_of(study, run, None, ruled=(ruled.part, ruled.tally)))
    repair = Repair.from_plain(_thresholds_at(answer, site, study.folder))
    return _with_facts(replace(found, repair=repair), study, run, site)


def _kept_blind_rule(
    study: Study, alpha: float | None, model: ModelFactory | Architecture | None
) -> TrainedModel | None:
    """The answer stored by the study's report, if it is a blind rule, which cannot be found again without the rows."""
    record = study.record
    if record.repair != "blind" or (alpha is None and len(study.alphas) > 1):
        return None
    for run in study.results:
        folder = RunFolder(study.folder / run.place)
        if alpha not in (None, run.alpha) or not (folder.path / GROUPS).exists():
            continue
        found = TrainedModel.read(folder.path, model)
        if found.rule is not None and str(folder.blind_rules().target) == str(Target.parse(record.target or "")):
            return _with_facts(found, study, run)
    return None


def _thresholds_at(answer: Answer, site: str | None, folder: Path) -> dict[str, Any]:
    """The answer's thresholds, or a site's own if it has any."""
    known = {one.site: one.repair for one in answer.sites}
    if site is not None:
        return look_up("site of this study", site, known)
    require(
        answer.together is None,
        f"The answer of the study in {folder} has thresholds of each site's own: name the site (--site), one of "
        f"{', '.join(known)}.",
    )
    return answer.best.repair


def _with_facts(model: TrainedModel, study: Study, run: Outcome, site: str | None = None) -> TrainedModel:
    tally = None if model.rule is None else RunFolder(study.folder / run.place).blind_rules().tally(model.rule)
    return replace(model, facts=facts_of(study, run, model.repair, site, tally))


def facts_of(
    study: Study,
    run: Outcome,
    repair: Repair | None,
    site: str | None = None,
    ruled: tuple[Part, Tally] | None = None,
) -> ModelFacts:
    """Facts about the model of a study's run with these thresholds, at one site or at all sites.

    `ruled` is the Tally of its blind rule, if it has one, and the part that it is of.
    """
    record, others = study.record, {one.label for one in study.results} - {run.label}
    scores: Mapping[str, ScoreHistogram] = {}
    if repair is not None:
        scores = study.scores(run) if site is None else study.client_scores(run)[site]
    part: Part = "test" if "test" in scores or repair is None else "validation"
    counts = run.confusion if repair is None or part not in scores else repair.tally(scores[part]).confusion.tolist()
    if ruled is not None:
        part, counts = ruled[0], ruled[1].confusion.tolist()
    verdict, ends = None, dict[str, float]()
    if record.target is not None and counts is not None and record.group_names:
        target = Target.parse(record.target)
        tally = Tally.of_counts(counts, record.excluded)
        judgement = judged(tally, target, record.favourable, record.group_names, chose=part == "validation")
        verdict, ends = judgement.verdict(target), judgement.ends
    return ModelFacts(
        title=f"{run.label} on {record.task['data']}{'' if site is None else f', site {site}'}",
        algorithm=run.label,
        seed=run.seed,
        rounds=run.kept or len(run.history),
        task=record.task,
        group_names=record.group_names,
        favourable=record.favourable,
        excluded=record.excluded,
        clients=len(record.clients),
        training_rows=sum(int(one["rows"]) for one in record.clients) or None,
        counts=counts,
        part=part,
        target=record.target,
        verdict=verdict,
        ends=ends,
        epsilon=run.history[-1].get("epsilon") if run.history else None,
        delta=record.delta,
        settings={name: value for name, value in record.choices.items() if name not in others},
        notes=(*record.data_notes, *record.answer_notes),
        versions=record.versions,
        command=record.command,
    )
