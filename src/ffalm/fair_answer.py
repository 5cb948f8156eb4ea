"""`ffalm.fair`: train the candidates of a fairness target on one federation, and answer with one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ffalm.blind_mode import GroupModel, held_out
from ffalm.config import entry_of
from ffalm.errors import require
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings, Training
from ffalm.settings import with_keywords
from ffalm.simulation import RunKeywords, rebuilt, seed_of
from ffalm.studies.learning_rate import choose_rate
from ffalm.studies.model_folders import facts_of
from ffalm.studies.store import RunFolder
from ffalm.studies.study import Named, compare
from ffalm.studies.study_answer import StudyAnswer
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.answer import Answer
from ffalm.targets.blind import BlindRule
from ffalm.targets.candidates import lagrangians
from ffalm.targets.repair import Repair
from ffalm.targets.target import DEFAULT, Target
from ffalm.targets.target import Repair as RepairSetting
from ffalm.trained_models.trained_model import TrainedModel

#: Trained besides the algorithms that aim at the target.
BASELINES = ("fedavg", "ffalm")


@dataclass(frozen=True, kw_only=True, repr=False)
class FairAnswer(StudyAnswer):
    """The answer to a target: `test`, `verdict`, `bounds`, `candidates`, and the `model` with its thresholds.

    Where the answer is a blind rule, `rule` and `groups`, the model of the groups, replace the thresholds.
    """

    model: TrainedModel
    rule: BlindRule | None = None
    groups: GroupModel | None = None

    def predict(self, x: Any, group: Any = None) -> NDArray[Any]:
        """The label that is predicted for each row, thresholds applied: `model.predict`, which says what `x` and
        `group` may be. Rows without a group, or of one that the task does not have, get the threshold for everybody."""
        return self.model.predict(x, group)

    def decide(self, x: Any, group: Any = None) -> Tensor:
        """The number of the label that `predict` names, for each row, as in the federation's own rows."""
        return self.model.decide(x, group)

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """P(label) of each row, of shape (rows, labels)."""
        return self.model.predict_proba(x)

    def save(self, folder: str | Path) -> Path:
        """Write the model with its thresholds, or its blind rule and the model of the groups, into a folder, from
        which `ffalm.load_model` reads it again."""
        return self.model.save(folder)


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
    are those of `Study.answer`, the other keywords those of `simulate`. Without `lr`, the learning rate of a table is
    chosen on its validation part: 0.05, 0.2, 0.5 or 1.
    """
    held_out(federation, "The answer to a target is chosen on")
    aim = Target.parse(target)
    require(
        algorithms is None or isinstance(algorithms, Sequence | Mapping),
        f"Give algorithms as a list or by name; got a value of type {type(algorithms).__name__}.",
    )
    aiming = {key: entry_of(key, values).algorithm for key, values in lagrangians(aim).items()}
    candidates = {**{name: name for name in BASELINES}, **aiming} if algorithms is None else algorithms
    shared = RunSettings.from_keywords(settings)
    with usual_modes():
        rate = choose_rate(federation, shared, seed_of(seed)) if "lr" not in settings else None
        if rate is not None:
            settings["lr"] = rate.lr
        study = compare(
            federation,
            candidates,
            seeds=[seed_of(seed)],
            target=aim,
            repair=repair,
            confidence=confidence,
            checkpoint_every=shared.training.rounds,
            **settings,
        )
        answer = study.answer(federation=federation)
        if rate is not None and rate.note:
            answer = replace(answer, notes=(*answer.notes, rate.note))
        plain = rebuilt(RunFolder(study.folder / answer.best.run).model(), federation, settings)
        run = next(one for one in study.results if one.place == answer.best.run)
        own = {one.name: getattr(answer, one.name) for one in fields(Answer)}
        if answer.chosen.kind == "blind":
            ruled = study.blind_model(run, federation).fit(aim, answer.best.validation.level)
            model = replace(plain, facts=facts_of(study, run, None, ruled=(ruled.part, ruled.tally)), rule=ruled.rule)
            model = replace(model, groups=ruled.group_model.network)
            return FairAnswer(**own, model=model, rule=ruled.rule, groups=ruled.group_model)
        thresholds = Repair.from_plain(answer.best.repair)
        return FairAnswer(**own, model=replace(plain, repair=thresholds, facts=facts_of(study, run, thresholds)))
