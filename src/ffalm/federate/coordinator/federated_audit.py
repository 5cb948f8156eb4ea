"""An audit across sites without training: of a column of predictions or scores at the sites, or of a trained model.

A column is audited as a fixed model that takes it as its only feature, so sites send what they send at the end of
every training, under the same rules: counts of held-out rows by prediction, label and group, without the cells of too
few rows, and in secure sums if the rule `secure` is on. A predicted label l gives the logits e_l; a score s gives
the favourable label the logit s - decision, up to a positive factor.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ffalm import config as study
from ffalm.auditing.counted_groups import CountedGroups
from ffalm.auditing.fairness_audit import Audit
from ffalm.data.encoding import FARTHEST, CategoryColumn, NumericColumn
from ffalm.data.table_values import listed, place_of
from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Sites
from ffalm.errors import UserError, require
from ffalm.fairness import Tally
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_run import PAUSE, Coordinator, federation_outcome
from ffalm.federate.coordinator.federation_report import notes_on, secure_notes
from ffalm.federate.coordinator.introductions import Owner
from ffalm.federate.coordinator.site_clients import SiteClients
from ffalm.federate.disclosure import cells
from ffalm.federate.federation_config import FederationConfig, SharedTable
from ffalm.federate.secure.secure_clients import SecureClients
from ffalm.outcome import Outcome
from ffalm.runs import Result
from ffalm.settings import build
from ffalm.studies.store import RunFolder, locked
from ffalm.system import toml
from ffalm.system.files import json_text, read_json, write_atomic
from ffalm.targets.target import DEFAULT
from ffalm.trained_models.trained_model import ENCODING, TrainedModel

#: The file in an audit's folder that names what is audited.
REQUEST = "request.json"
_TOLERANCE = 1e-5  # of a score's standard deviation, within which it reaches the decision: features have 32 bits


@dataclass(frozen=True)
class AuditRequest:
    """What is audited: one of a column of predictions, a column of scores, and a trained model."""

    prediction: str | None = None
    score: str | None = None
    decision: float = 0.5  # the score from which the favourable outcome is predicted
    model: str | None = None  # the folder of a run, a federation or a saved model

    def __post_init__(self) -> None:
        given = [one for one in (self.prediction, self.score, self.model) if one is not None]
        require(len(given) == 1, "Give one of a column of predictions, a column of scores, and a model to audit.")

    @property
    def column(self) -> str | None:
        """The column that is audited."""
        return self.prediction or self.score

    def trained(self) -> TrainedModel | None:
        """The trained model, if one is audited."""
        if self.model is None:
            return None
        folder = Path(self.model)
        return TrainedModel.read(folder / "run" if (folder / "run" / ENCODING).exists() else folder)

    def check(self, config: FederationConfig) -> None:
        """Refuse what cannot be audited in a federation, before any site is asked."""
        audit_config(config, self, self.trained())

    def write(self, folder: Path) -> None:
        """Write `request.json`."""
        write_atomic(folder / REQUEST, json_text(asdict(self), 2))

    @classmethod
    def read(cls, folder: Path) -> AuditRequest:
        """The request in a folder."""
        try:
            given = read_json(folder / REQUEST)
        except (OSError, ValueError) as error:
            raise UserError(f"The request {folder / REQUEST} cannot be read ({error}).") from None
        require(isinstance(given, dict), f"The request {folder / REQUEST} is no table of settings: start a new audit.")
        return build(cls, given, "audit")


def audit_sites(
    config: FederationConfig,
    folder: Path,
    sites: Sites,
    owner: Owner = lambda node: None,
    pause: float = PAUSE,
) -> Audit:
    """Audit what the request in a folder names, and keep the sites' answers there."""
    request = AuditRequest.read(folder)
    model = request.trained()
    plan, run = audit_config(config, request, model), RunFolder(folder)
    folder.chmod(0o700)
    run.start(toml.dumps(plan.settings()))
    with locked(folder):
        if run.outcome() is None:
            Auditor(plan, run, sites, owner, pause, request, model).run()
    return read_audit(folder)


def audit_config(config: FederationConfig, request: AuditRequest, model: TrainedModel | None) -> FederationConfig:
    """The federation's settings with the column as the only feature, or with the trained model."""
    require(
        config.privacy is None,
        "An audit reveals counts without noise, and this federation has [privacy]: take that section out to audit.",
    )
    require(
        model is None or model.rule is None,
        "A blind rule takes two models, and sites are sent one to audit: let each site predict with it, and audit that "
        "column.",
    )
    shared = replace(
        config,
        training=replace(config.training, rounds=1),
        contender=study.entry_of("fedavg", {}),
        target=None,
        repair="groups",
    )
    if model is not None:
        architecture = study.model_of(model.description.model)
        return replace(shared, model=architecture, target=DEFAULT if model.repair is not None else None)
    assert request.column is not None
    if not isinstance(config.data, SharedTable):
        raise UserError("The sites bring images, which have no column of predictions: name a model to audit.")
    coded = (request.column,) if request.prediction is not None else ()
    roles = {"columns": (request.column,), "categorical": coded, "drop": (), "use_group_as_feature": False}
    taken = (config.data.label, *config.data.group_columns)
    require(request.column not in taken, f"The column {request.column!r} is the label or a group: name another.")
    return replace(shared, data=replace(config.data, **roles), model=study.model_of({"name": "linear"}))  # type: ignore[arg-type]


class Auditor(Coordinator):
    """A run of no rounds: agree, and score one model."""

    done = "The audit is done."

    def __init__(
        self,
        config: FederationConfig,
        run: RunFolder,
        sites: Sites,
        owner: Owner,
        pause: float,
        request: AuditRequest,
        model: TrainedModel | None,
    ) -> None:
        super().__init__(config, run, sites, owner, pause)
        self._request, self._model = request, model

    def _begin(self) -> None:
        """Agree on the column's encoding, or take the model's own."""
        if self._model is not None and self._log.agreement() is None:
            own = self._model.description
            table = None if own.preprocessing is None else own.preprocessing.table
            agreed = Agreement(own.task, self._config.data, table, self._config.model, self._config.sites)
            self._log.keep_members(agreed, {}, {})
        super()._begin()

    def _fresh(self, done: int) -> dict[str, Tensor]:
        fresh = super()._fresh(done)
        if self._model is not None:
            return {name: value.cpu() for name, value in self._model.module.state_dict().items()}
        weight, bias = column_weights(self._request, self._members.agreed)
        return dict(zip(fresh, (weight, bias), strict=True))

    def _train(self, clients: SiteClients | SecureClients, start: Snapshot | None) -> tuple[Snapshot, str | None]:
        return Snapshot(0, dict(clients.begin()), {}), None

    def _finish(self, clients: SiteClients | SecureClients, final: Snapshot, diverged: str | None) -> Outcome:
        """Count the held-out rows of all sites, both parts together."""
        config, members, task = self._config, self._members, self._members.agreed.task
        clients.compares_losses = False
        scores = clients.score(final)
        scored, parts = scores["test"].sites, list(scores.values())
        require(bool(scored), "No site sent any counts.")
        repair = None if self._model is None else self._model.repair
        tally = parts[0].tally + parts[1].tally
        if repair is not None:
            told = [repair.tally(one) for part, one in clients.histograms.parts.items() if part != "training"]
            require(bool(told), "Thresholds need the sites' score histograms, and no site sent any.")
            tally = sum(told[1:], told[0])
        tally = tally.excluding(task.excluded)
        known = () if repair is not None else parts[1].own
        own = {site: parts[0].own[site].tally + parts[1].own[site].tally for site in known}
        metrics = {site: one.excluding(task.excluded).metrics(task.favourable) for site, one in own.items()}
        missing = {**clients.missed, **clients.quarantined}
        self._log.write_sites(task, members.counts, members.left_out, metrics)
        notes = notes_on(scored, members.counts, tally, task, members.left_out, missing, [])
        for site in scored:
            hidden = cells(members.counts[site].withheld["validation"], task)
            if hidden:
                untold = f"The site {site!r} withholds cells of its validation rows, too small to be sent"
                notes.append(f"{untold} ({'; '.join(hidden)}): the metrics are of the other rows.")
        result = Result(
            test=tally.metrics(task.favourable),
            history=[],
            state_dict=final.model,
            state={},
            tally=tally,
            clients=[metrics.get(site, {}) for site in config.sites],
            seed=config.seed,
            notes=[*notes, *([] if config.secure is None else secure_notes())],
            favourable=task.favourable,
        )
        outcome = federation_outcome(config, result)
        self._run.finish(result, outcome)
        self._log.say("finished", f"{len(scored)} sites were audited.")
        return outcome


def column_weights(request: AuditRequest, agreed: Agreement) -> tuple[Tensor, Tensor]:
    """The weight and bias of the linear model that predicts the values of a column."""
    task, encoding = agreed.task, agreed.encoding
    assert encoding is not None
    column = encoding.columns[0]
    weight, bias = torch.zeros(task.labels, len(encoding.features)), torch.zeros(task.labels)
    if isinstance(column, CategoryColumn):
        require(request.prediction is not None, f"The column {column.name!r} holds text: scores are numbers.")
        places = {value: -1 if value is None else place_of(value, task.label_names) for value in column.categories}
        stray = [str(value) for value, place in places.items() if place < 0]
        require(not stray, f"The column {column.name!r} holds {listed(stray)}, which is no value of {task.label!r}.")
        for feature, place in enumerate(places.values()):
            weight[place, feature] = 1.0
        unnamed = sorted({*range(task.labels)} - {*places.values()})
        require(
            len(unnamed) < 2,
            f"Too few rows of every site are predicted {listed([task.label_names[place] for place in unnamed])} for "
            "these values to be named: lower the rule 'min_group', or list fewer label_values.",
        )
        bias[unnamed] = 0.5  # a value that is not named is the one that is missing
        return weight, bias
    assert isinstance(column, NumericColumn)
    require(task.labels == 2, "Scores are audited for labels of two values.")
    require(column.scale > 0, f"All scores in {column.name!r} are equal.")
    weight[task.favourable, 0] = 1.0
    decision = column.standardised(np.array([request.decision]))[0]
    bias[task.favourable] = _TOLERANCE - float(np.clip(decision, -2 * FARTHEST, 2 * FARTHEST))  # no score lies beyond
    return weight, bias


def read_audit(folder: Path) -> Audit:
    """The audit in a folder, from what the sites told."""
    outcome, request = RunFolder(folder).outcome(), AuditRequest.read(folder)
    require(outcome is not None and outcome.confusion is not None, f"The audit in {folder} is not finished.")
    assert outcome is not None and outcome.confusion is not None
    agreed = Agreement.load(folder / ENCODING)
    task = agreed.task
    notes = read_json(folder / "result.json")["notes"]
    tally = Tally.of_counts(outcome.confusion, task.excluded)
    small = frozenset(task.group_names[task.compared : -1])
    counted = CountedGroups(
        task.group, tally, task.group_names, task.label_names, task.favourable, small, task.excluded > 0
    )
    return Audit(
        label=task.label,
        favourable=task.label_names[task.favourable],
        rows=int(tally.count.sum()),
        scored=False,
        probabilities=False,
        threshold=request.decision if request.score is not None else None,
        min_group=agreed.data.min_group_size or 0,
        level=0.95,
        groupings=(counted.facts(),),
        notes=tuple(notes),
    )
