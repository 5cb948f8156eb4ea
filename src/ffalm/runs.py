"""Runs while they are computed, and what they gave: one model of all clients, or one of each client alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ffalm.algorithms import State
from ffalm.data.types import Examples
from ffalm.engines import Engine, Job, ModelFactory, Round, Snapshot
from ffalm.engines.common import autocast, built_model, evaluate_with_scores
from ffalm.errors import UserError, require, short_repr
from ffalm.fairness import ScoreHistogram, Tally, undefined
from ffalm.federation import Federation
from ffalm.frame_html import frame_html
from ffalm.outcome import HEADLINE, Record
from ffalm.run_settings import Keep
from ffalm.system.hardware import deterministic
from ffalm.trained_models.model_description import ModelDescription
from ffalm.trained_models.model_facts import ModelFacts
from ffalm.trained_models.model_selection import ModelSelection
from ffalm.trained_models.run_facts import description_of, facts_of_run
from ffalm.trained_models.trained_model import TrainedModel

if TYPE_CHECKING:
    from pandas import DataFrame

    from ffalm.report.chart_sheet import Picture


@dataclass(frozen=True)
class Result:
    """What a run gave. Metrics are fractions; NaN means undefined."""

    test: dict[str, float]  # metrics of the final model on the test part
    history: list[Record]  # one record per round
    state_dict: dict[str, Tensor]  # the final global model
    state: State  # the server's final state, such as its duals
    tally: Tally | None  # the test part's Tally, from which other metrics and intervals can be had
    clients: list[dict[str, float]]  # metrics of the final model on each client's own rows
    seed: int = 0
    notes: list[str] = field(default_factory=list)  # what a reader of the numbers should know
    diverged: str | None = None  # why the run was stopped early, in one sentence
    favourable: int = 1  # the label that the task's metrics are about
    kept: int | None = None  # the round whose model this is, None if it is the last
    scores: dict[str, ScoreHistogram] = field(default_factory=dict)  # "training" without privacy; "validation", "test"
    client_scores: dict[str, list[ScoreHistogram]] = field(default_factory=dict)  # of each client's own held-out rows
    group_names: tuple[str, ...] = ()
    description: ModelDescription | None = field(default=None, repr=False, compare=False)  # what the model takes
    factory: ModelFactory | None = field(default=None, repr=False, compare=False)  # that makes the untrained model
    facts: ModelFacts | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """The function that makes the model is pickled separately, so that a program without it can read the result.

        It is None if it cannot be pickled, such as a lambda.
        """
        try:
            factory = pickle.dumps(self.factory)
        except Exception:  # a user's object may raise anything
            factory = None
        return {**self.__dict__, "factory": factory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        factory = None
        if state["factory"] is not None:
            with suppress(Exception):  # as above
                factory = pickle.loads(state["factory"])
        self.__dict__.update(state, factory=factory)

    def __copy__(self) -> Result:
        """With the function that makes the model, whether or not it can be pickled."""
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        """With the same function, which may not be copyable either."""
        copied = [one.name for one in fields(self) if one.name != "factory"]
        return replace(self, **{name: copy.deepcopy(getattr(self, name), memo) for name in copied})

    @property
    def model(self) -> TrainedModel:
        """The trained model, which takes new rows."""
        if self.description is None:
            raise UserError("This run trained a model for each client, so it has no single model for new rows.")
        return TrainedModel.of(self.state_dict, self.description, self.factory, facts=self.facts)

    def predict(self, data: Any) -> NDArray[Any]:
        """The most probable label of each row of a table, an array of features or a list of images.

        See `TrainedModel.predict`. Thresholds that keep a fairness target come with `ffalm.fair` and `load_model`.
        """
        return self.model.predict(data)

    def predict_proba(self, data: Any) -> NDArray[np.float64]:
        """P(label) of each row, of shape (rows, labels)."""
        return self.model.predict_proba(data)

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder, from which `ffalm.load_model` reads it again."""
        return self.model.save(folder)

    def __repr__(self) -> str:
        figures = [f"{name}={self.test[name]:.4f}" for name in HEADLINE if name in self.test]
        ended = ["diverged"] if self.diverged else []
        return f"Result({', '.join([f'seed={self.seed}', f'rounds={len(self.history)}', *figures, *ended])})"

    def by_group(self) -> DataFrame:
        """Each group's rows, accuracy, rates and loss on the test part: see `Tally.by_group`."""
        return self._tally().by_group(self.favourable, self.group_names)

    def to_dataframe(self) -> DataFrame:
        """One row per round: its record of the history."""
        from pandas import DataFrame

        return DataFrame(self.history).set_index("round")

    def plot(self, *metrics: str) -> Picture:
        """Metrics of the held-out rows by round as an SVG that notebooks show; accuracy, DPD and EOD by default."""
        from ffalm.report.notebook_charts import by_round

        known = [name for name, value in self.history[-1].items() if name != "round" and isinstance(value, float)]
        shown = metrics or [name for name in HEADLINE if name in known]
        require(bool(shown), "The run recorded no metric of held-out rows: the federation has no validation part.")
        for name in shown:
            require(
                isinstance(name, str) and name in known,
                f"The run recorded no {short_repr(name)}: choose from {', '.join(known)}.",
            )
        return by_round(self.history, shown)

    def _repr_html_(self) -> str:
        ended = (self.diverged,) if self.diverged else ()
        return frame_html(repr(self), self.to_dataframe() if self.tally is None else self.by_group(), ended)

    @property
    def epsilon(self) -> float | None:
        """The differential privacy budget spent by the whole run, at its settings' delta; None without privacy."""
        return self.history[-1].get("epsilon") if self.history else None

    def interval(self, metric: str, level: float = 0.95, favourable: int | None = None) -> tuple[float, float]:
        """A confidence interval of a test metric over the sampling of the test rows.

        It is about the label that `test` is about, unless `favourable` names another.
        """
        return self._tally().interval(metric, level, self.favourable if favourable is None else favourable)

    def _tally(self) -> Tally:
        require(self.tally is not None, "The federation has no test part, so there are no test rows to score.")
        assert self.tally is not None
        return self.tally


class Computed(Protocol):
    """What `compute` needs of a run."""

    @property
    def jobs(self) -> Sequence[Job]: ...
    def add(self, place: int, done: Round, /) -> Record | None:
        """Record a round of one of the jobs; returns the run's own record once all jobs have done the round."""

    def finish(self) -> Result: ...


class Run:
    """A run of one model: its rounds so far, and the model that it would end with.

    `federation` is what the model is scored on: the job's has a single client if rows are pooled for training.
    """

    def __init__(self, job: Job, keep: Keep, federation: Federation) -> None:
        self.job, self.federation = job, federation
        self.history: list[Record] = []
        self.selection = ModelSelection(keep)
        self.diverged: str | None = None

    @property
    def jobs(self) -> Sequence[Job]:
        """The one job."""
        return [self.job]

    def add(self, place: int, done: Round) -> Record:
        """Record a round."""
        self.history.append(done.record)
        self.selection.add(done)
        self.diverged = done.diverged
        return done.record

    def finish(self) -> Result:
        """Score the selected model on the test part and on each client's rows."""
        return _scored(self.job, self.federation, self.history, self.selection.final(), self.diverged)


class ClientsAlone:
    """A run in which every client trains a model of its own on its own rows: what it gets without a federation.

    Every model is scored on the shared validation and test rows, and with p_i = n_i / n, client i's share of the
    training rows, the run's Tally and score histograms are

        sum_i p_i Tally_i,    sum_i p_i histogram_i:

    the expected counts where a row is predicted by the model of a client that is drawn by size. Gaps are those of these
    expected counts, so opposite gaps of clients cancel. Each client's own rows are scored by its own model. Records of
    rounds are means by size of the clients' numbers. There is no one model to keep, and no round to resume from.
    """

    def __init__(self, jobs: Sequence[Job], keep: Keep, federation: Federation) -> None:
        self.jobs = jobs
        self.history: list[Record] = []
        self._parts = [Run(job, keep, job.federation) for job in jobs]
        rows = [len(view) for view in federation.row_views]
        self._shares = [one / sum(rows) for one in rows]

    def add(self, place: int, done: Round) -> Record | None:
        """Record a round of one client."""
        self._parts[place].add(0, done)
        if min(len(part.history) for part in self._parts) == len(self.history):
            return None
        self.history.append(self._averaged([part.history[len(self.history)] for part in self._parts]))
        return self.history[-1]

    def _averaged(self, records: Sequence[Record]) -> Record:
        names = [name for name, value in records[0].items() if isinstance(value, float) and name != "seconds"]
        weighted = list(zip(self._shares, records, strict=True))
        means = {name: sum(share * one[name] for share, one in weighted) for name in names}
        seconds = sum(one["seconds"] for one in records)
        return {"round": records[0]["round"], **means, "weights": self._shares, "seconds": seconds}

    def finish(self) -> Result:
        """Score every client's model, and average."""
        each = [part.finish() for part in self._parts]
        first, task = each[0], self.jobs[0].federation.task
        tallies = [one.tally for one in each if one.tally is not None]
        tally = None if not tallies else reduce(add, map(_share_of_tally, tallies, self._shares))
        scores = {name: [one.scores[name] for one in each] for name in first.scores if name != "training"}
        return Result(
            test={} if tally is None else tally.metrics(task.favourable),
            history=self.history,
            state_dict={},
            state={},
            tally=tally,
            clients=[one.clients[0] for one in each],
            seed=first.seed,
            notes=[] if tally is None else undefined(tally, task.label_names, task.group_names),
            diverged=next((one.diverged for one in each if one.diverged is not None), None),
            favourable=task.favourable,
            scores={name: reduce(add, map(_share_of_scores, own, self._shares)) for name, own in scores.items()},
            client_scores={name: [one.client_scores[name][0] for one in each] for name in first.client_scores},
            group_names=task.group_names,
        )


def _share_of_tally(tally: Tally, share: float) -> Tally:
    return Tally(share * tally.confusion.double(), share * tally.loss, tally.excluded)


def _share_of_scores(scores: ScoreHistogram, share: float) -> ScoreHistogram:
    return replace(scores, counts=share * scores.counts.double())


R = TypeVar("R", bound=Computed)


def compute(runs: Sequence[R], engine: Engine, threads: int, on_round: Callable[[R, Record], None]) -> list[Result]:
    """Compute runs to their ends, in one call of the engine."""
    if not runs:
        return []
    places = [(run, place) for run in runs for place in range(len(run.jobs))]
    with deterministic(threads, tf32=runs[0].jobs[0].spec.precision != "fp32"):
        for index, done in engine.train([run.jobs[place] for run, place in places]):
            run, place = places[index]
            record = run.add(place, done)
            if record is not None:
                on_round(run, record)
        return [run.finish() for run in runs]


def _scored(job: Job, federation: Federation, history: list[Record], final: Snapshot, diverged: str | None) -> Result:
    module = built_model(job.spec)
    module.load_state_dict(final.model)

    def scored(examples: Examples) -> tuple[Tally, ScoreHistogram]:
        with autocast(job.spec):
            return evaluate_with_scores(module, examples.to(job.spec.device), federation.task)

    parts = {"validation": federation.validation, "test": federation.test}
    shared_parts = {name: scored(part) for name, part in parts.items() if part is not None}
    own_parts = {"validation": federation.own_parts("validation"), "test": federation.own_parts("test")}
    tally = shared_parts["test"][0] if "test" in shared_parts else None
    tallies, histograms = zip(*map(scored, federation.clients), strict=True)
    names = federation.task.label_names, federation.task.group_names
    return Result(
        test={} if tally is None else tally.metrics(federation.task.favourable),
        history=history,
        state_dict={name: value.cpu() for name, value in final.model.items()},
        state={name: value.cpu() for name, value in final.state.items()},
        tally=tally,
        clients=Tally.stack(list(tallies)).metrics_of_each(federation.task.favourable),
        seed=job.spec.seed,
        notes=[] if tally is None else undefined(tally, *names),
        diverged=diverged,
        favourable=federation.task.favourable,
        kept=final.round if final.round != history[-1]["round"] else None,
        scores={
            # of clients' rows and without noise: an answer that rested on them would spend a budget nobody counts
            **({"training": reduce(add, histograms)} if job.privacy is None else {}),
            **{name: one for name, (_, one) in shared_parts.items()},
        },
        client_scores={name: [scored(one)[1] for one in each] for name, each in own_parts.items() if each is not None},
        group_names=federation.task.group_names,
        description=description_of(job),
        factory=job.spec.model,
        facts=facts_of_run(job, history, tally),
    )
