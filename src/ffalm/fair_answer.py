"""`ffalm.fair`: train the candidates of a fairness target on one federation, and answer with one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from ffalm.blind_mode import GroupModel
from ffalm.config import entry_of
from ffalm.data.types import Task
from ffalm.errors import require
from ffalm.fairness.histograms import scores_of
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings, Training
from ffalm.settings import with_keywords
from ffalm.simulation import RunKeywords, seed_of
from ffalm.store import RunFolder
from ffalm.study import Named, compare
from ffalm.targets.answer import Answer
from ffalm.targets.blind import BlindRule
from ffalm.targets.candidates import lagrangians
from ffalm.targets.repair import Repair, draws_of
from ffalm.targets.target import DEFAULT, Target
from ffalm.targets.target import Repair as RepairSetting
from ffalm.trained_model import TrainedModel

#: Trained besides the algorithms that aim at the target.
BASELINES = ("fedavg", "ffalm")


@dataclass(frozen=True)
class Predictor:
    """A trained model with its thresholds, or with its blind rule and the model of the groups that it needs."""

    model: TrainedModel
    repair: Repair | BlindRule
    task: Task
    groups: GroupModel | None = None

    def predict(self, x: Any, group: Any = None) -> Tensor:
        """The label of each row, as its number in the task.

        `group` has one entry a row, by number or by name; a row whose group is none of the task's, and every row where
        `group` is left out, gets the one threshold for everybody. A blind rule asks for no group and uses none.
        """
        rows = self.model.rows(x)
        if isinstance(self.repair, BlindRule):
            assert self.groups is not None
            return self.repair.predict(self.model.logits(rows), self.groups.cells(rows), self.task.favourable)
        codes = None if group is None else self._codes(group, len(rows))
        scores, fallback = scores_of(self.model.logits(rows), self.task.favourable)
        draws = draws_of(row.tobytes() for row in rows.numpy()) if self.repair.kind == "randomised" else None
        chosen = self.repair.favourable(scores, codes, draws)
        return torch.where(chosen, self.task.favourable, fallback)

    def _codes(self, group: Any, rows: int) -> Tensor:
        """Groups by number; -1 for those that the task does not know."""
        given = np.asarray(group)
        require(given.shape == (rows,), f"There must be one group per row; got {given.shape} for {rows} rows.")
        if given.dtype.kind in "iu":
            return torch.as_tensor(given.astype(np.int64))
        places = {name: place for place, name in enumerate(self.task.group_names)}
        return torch.tensor([places.get(str(name), -1) for name in given.tolist()])


@dataclass(frozen=True, kw_only=True)
class FairAnswer(Answer):
    """The answer to a target: `test`, `verdict`, `bounds`, `candidates`, and the model's `predict`."""

    predictor: Predictor

    def predict(self, x: Any, group: Any = None) -> Tensor:
        """The label of each row: see `Predictor.predict`."""
        return self.predictor.predict(x, group)

    def explain(self) -> str:
        """The answer in sentences: how sure it is, what it costs and what it needs."""
        from ffalm.report.answer_report import sentences

        return "\n".join(sentences(self))

    def __repr__(self) -> str:
        metrics = {"accuracy", *(bound.metric for bound in self.target.bounds)}
        shown = ", ".join(f"{name}={value:.4f}" for name, value in self.test.items() if name in metrics)
        return f"FairAnswer({self.target}: {self.verdict}, {self.chosen.label}, {self.chosen.kind}, {shown})"


@with_keywords(RunSettings, Training)
def fair(
    federation: Federation,
    target: str | Target = DEFAULT,
    *,
    seed: int = 0,
    algorithms: Sequence[Named] | Mapping[str, Named] | None = None,
    repair: RepairSetting = "groups",
    confidence: float | None = None,
    **settings: Unpack[RunKeywords],
) -> FairAnswer:
    """The most accurate model whose gaps are within a target, such as "dpd <= 0.05" or "eod <= 0.05, dpd <= 0.1".

    Trains FedAvg, FFALM and two Lagrangians that aim at the target, or the `algorithms` given; fits thresholds to the
    federation's validation part, chooses there, and scores the choice once on its test part. `repair` and `confidence`
    are those of `Study.answer`, the other keywords those of `simulate`.
    """
    require(
        isinstance(federation, Federation),
        f"Give a Federation, such as ffalm.load(...) returns; got {type(federation).__name__}.",
    )
    require(
        federation.validation is not None,
        "A target is chosen for on held-out rows, and this federation has none: give it a validation part.",
    )
    aim = Target.parse(target)
    candidates = algorithms or {
        **{name: name for name in BASELINES},
        **{key: entry_of(key, values).algorithm for key, values in lagrangians(aim).items()},
    }
    study = compare(
        federation,
        candidates,
        seeds=[seed_of(seed)],
        target=aim,
        repair=repair,
        confidence=confidence,
        checkpoint_every=RunSettings.from_keywords(settings).training.rounds,
        **settings,
    )
    answer = study.answer(federation=federation)
    model = TrainedModel.of(RunFolder(study.folder / answer.best.run).model(), federation, settings)
    if answer.chosen.kind == "blind":
        (run,) = (one for one in study.results if one.place == answer.best.run)
        rule, groups = BlindRule.from_plain(answer.best.repair), study.blind_model(run, federation).groups
        predictor = Predictor(model, rule, federation.task, groups)
    else:
        predictor = Predictor(model, Repair.from_plain(answer.best.repair), federation.task)
    return FairAnswer(**{one.name: getattr(answer, one.name) for one in fields(Answer)}, predictor=predictor)
