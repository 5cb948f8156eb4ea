"""`Study`: the runs that a study's folder holds, as tables, a data frame and the best algorithm."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from numbers import Integral
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ffalm.errors import UserError, require, require_known, require_number, short_repr
from ffalm.outcome import Outcome, StudyOutcome, StudyRecord, degenerate
from ffalm.report.summary import more_is_better
from ffalm.studies.checksums import with_checksum
from ffalm.studies.describe import RECORD, describe, read_study
from ffalm.studies.store import RunFolder
from ffalm.studies.study_answer import StudyAnswer
from ffalm.system.files import folder_of, path_of, write_atomic
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.answer import Answer, choose
from ffalm.targets.candidates import BlindFit, FinishedRun, answer_of
from ffalm.targets.repair import GROUPS, REPAIR
from ffalm.targets.site_answers import with_sites
from ffalm.targets.target import DEFAULT, Repair, Scope, Target

if TYPE_CHECKING:
    from pandas import DataFrame

    from ffalm.blind_mode import BlindAnswer, BlindModel, GroupModel
    from ffalm.fairness import ScoreHistogram
    from ffalm.federation import Federation
    from ffalm.report.chart_sheet import Picture
    from ffalm.simulation import RunKeywords
    from ffalm.targets.judged_rule import JudgedRule


@dataclass(frozen=True)
class Best:
    """The algorithm that `Study.best` chose."""

    label: str
    alpha: float | None  # the Dirichlet skew at which it was compared
    means: dict[str, float]  # of each test metric over its runs
    runs: list[Outcome]


@dataclass(frozen=True, eq=False)
class Study:
    """The results of a study; `Study.load(folder)` reads them back."""

    record: StudyRecord
    results: list[Outcome]  # every finished run: test metrics, their intervals, and the history of its rounds
    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> Study:
        """The study in a folder, with the finished runs if it was stopped."""
        place = path_of(folder)
        return cls(*read_study(place), place)

    def __repr__(self) -> str:
        diverged = sum(run.diverged is not None for run in self.results)
        ended = f", {diverged} diverged" if diverged else ""
        return f"Study({self.record.title}: {len(self.results)} runs{ended}, folder={str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from ffalm.report import rendering, study_tables

        return rendering.to_html(study_tables.results(self.outcome))

    def plot(self, metric: str = "dpd") -> Picture:
        """Test accuracy against a gap as an SVG that notebooks show: one dot per run, coloured by algorithm."""
        from ffalm.report.notebook_charts import accuracy_against

        known = sorted({name for run in self.results for name in run.test})
        _require_metric(metric, known)
        return accuracy_against(metric, self.results)

    @cached_property
    def outcome(self) -> StudyOutcome:
        """Everything that a report says."""
        outcome = replace(describe(self.record, self.results), finished=self._finished())
        if self.record.target is None:
            return self._with_clients(outcome)
        answers: list[Answer] = []
        notes: list[str] = []
        for alpha in outcome.alphas():
            try:
                answers.append(self.answer(alpha=alpha))
            except UserError as error:
                notes += [f"The target {self.record.target} has no answer: {error}", *self.record.answer_notes]
        return self._with_clients(replace(outcome, answers=answers, notes=[*dict.fromkeys(notes), *outcome.notes]))

    def _with_clients(self, outcome: StudyOutcome) -> StudyOutcome:
        """The outcome with one model's metrics at each client: the answer's as trained, else the first run's."""
        answers = [answer.best.run for answer in outcome.answers]
        runs = sorted((run for run in self.results if run.diverged is None), key=lambda run: run.place not in answers)
        if not runs or not (self.folder / runs[0].place / "result.json").exists():
            return outcome
        metrics = RunFolder(self.folder / runs[0].place).client_metrics()
        names = [str(one["client"]) for one in self.record.clients]
        names = names if len(names) == len(metrics) else [str(place) for place in range(len(metrics))]
        rows = [{"client": name, **own} for name, own in zip(names, metrics, strict=True) if own]
        return replace(outcome, per_client=rows, per_client_of=f"{runs[0].label}, seed {runs[0].seed}")

    def _finished(self) -> str:
        """When the last run finished."""
        times = [time for run in self.results if (time := RunFolder(self.folder / run.place).finished()) is not None]
        return max(times).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if times else ""

    def answer(
        self,
        target: str | Target | None = None,
        repair: Repair | None = None,
        confidence: float | None = None,
        alpha: float | None = None,
        scope: Scope | None = None,
        federation: Federation | None = None,
    ) -> StudyAnswer:
        """The most accurate model within a fairness target: `study.answer("eod <= 0.05").verdict`.

        Every finished run is tried with every kind of thresholds up to `repair`: "none", "single" (one threshold for
        everybody), "groups" (one per group) or "randomised"; with "blind" up to "single", and with the rule of
        `ffalm.blind`, for which a model of the groups is trained for each seed. The choice is made on held-out rows
        (with training rows, where the models predict those no better) and scored on test rows.
        With `confidence` c, the one-sided c confidence bound of each gap on these rows must be within the target;
        left out, c is 0.8, or less where that costs more than a point of accuracy. What else is left out is taken from
        the study's own settings. A study of several skews needs `alpha`.
        `scope` says where the target is to hold: over the "federation", at all "sites", or "both". For sites the chosen
        model gets thresholds of each site's own, where its held-out rows suffice; an `owner` column must name them.
        A blind rule needs the rows again: give the `federation` of a study of one in memory. One of several, as of a
        data frame and several seeds, has no such answer: see `blind`.
        `explain()` of the answer says it in sentences; notebooks show these and who pays.
        """
        record = self.record
        asked = Target.parse(target if target is not None else record.target or DEFAULT)
        level = record.confidence if confidence is None else confidence
        allowed, where = repair if repair is not None else record.repair, scope if scope is not None else record.scope
        require_known("repair", get_args(Repair), allowed)
        require_known("scope of a target", get_args(Scope), where)
        ended = [run for run in self._runs(alpha) if run.diverged is None and run.label not in record.references]
        if allowed == "blind" and federation is not None and ended:
            from ffalm.studies.grid import require_computed_on

            require_computed_on(federation, self._folder(ended[0]))
        blind = {run.place: self._blind_fit(run, federation) for run in ended if allowed == "blind"}
        runs = [FinishedRun(run.label, run.seed, run.alpha, run.place, self.scores(run), blind.get(run.place))
                for run in ended]  # fmt: skip
        require(
            bool(runs),
            "No run of a federated algorithm has finished with a result; central and local training are "
            "references, which an answer never chooses."
            if record.references
            else "No run has finished with a result.",
        )
        require(
            all("validation" in run.scores for run in runs),
            "Thresholds and candidates are chosen on held-out rows, and these runs have no scores of such rows.",
        )
        answer = answer_of(runs, asked, allowed, record.group_names, level)
        blind_notes = () if allowed != "blind" else self._blind_notes(answer, federation)
        notes = (*blind_notes, *answer.notes, *record.answer_notes)
        answer = replace(answer, notes=notes, federated=record.federated)
        if answer.chosen.kind == "blind":
            require(
                where == "federation",
                "A blind rule applies to all sites alike: set scope to federation, or choose another repair.",
            )
            return StudyAnswer.of(answer)
        own = self.client_scores(next(run for run in self.results if run.place == answer.best.run))
        sites_may_use = "single" if allowed == "blind" else allowed
        return StudyAnswer.of(with_sites(answer, own, where, sites_may_use, record.group_names))

    def blind(
        self,
        run: Outcome,
        target: str | Target | None = None,
        *,
        confidence: float | None = None,
        groups: GroupModel | None = None,
        federation: Federation | None = None,
    ) -> BlindAnswer:
        """`ffalm.blind` for a run's model: `study.blind(study.results[0], "dpd <= 0.05")`.

        The run's own settings train the model of the groups, unless `groups` is given. A study of federations in memory
        needs the run's `federation`; others load it again.
        """
        aim = Target.parse(target if target is not None else self.record.target or DEFAULT)
        level = self.record.confidence if confidence is None else confidence
        with usual_modes():
            answer = self.blind_model(run, federation, groups).fit(aim, level)
        if answer.warning:
            warnings.warn(answer.warning, stacklevel=2)
        return answer

    def blind_model(
        self, run: Outcome, federation: Federation | None = None, groups: GroupModel | None = None
    ) -> BlindModel:
        """A run's model with the model of the groups, which is trained once for all runs of a seed."""
        require(
            not self.record.federated,
            'The rows of a real federation stay at its sites: with a target and repair = "blind" in federation.toml '
            "its run has the rule, and load_model applies it.",
        )
        from ffalm.blind_mode import BlindModel, group_model
        from ffalm.config import parse, read
        from ffalm.simulation import rebuilt
        from ffalm.studies.grid import federation_of, plans, require_own, require_unchanged

        folder = self._folder(run)
        config = parse(read(folder.path / "config.toml"))
        owned, settings = federation or federation_of(config, plans(config)[0]), cast("RunKeywords", config.keywords())
        first = self.record.fingerprints.get("data", "")
        if federation is not None:
            require_own(federation, config, first)
        elif (self.folder / RECORD).exists():
            require_unchanged(self.folder, first)
        known, key = self._group_models, (run.alpha, run.seed)
        if groups is None and (key not in known or known[key][0] is not owned):
            known[key] = owned, group_model(owned, seed=run.seed, **settings)
        return BlindModel(rebuilt(folder.model(), owned, settings), groups or known[key][1], owned)

    @cached_property
    def _group_models(self) -> dict[tuple[float | None, int], tuple[Federation, GroupModel]]:
        return {}

    def _blind_rules(self, run: Outcome, federation: Federation | None) -> Callable[[Target, float], JudgedRule]:
        """A function from target and confidence to a run's blind rule; a real federation stores those of its target."""
        if self.record.federated:
            return self._folder(run).blind_rules().judged
        return self.blind_model(run, federation).fit

    def _blind_fit(self, run: Outcome, federation: Federation | None) -> BlindFit:
        rules = self._blind_rules(run, federation)
        return lambda target, level: rules(target, level).candidate_run(run.seed, run.place)

    def _blind_notes(self, answer: Answer, federation: Federation | None) -> tuple[str, ...]:
        """Notes on the blind rule of the chosen algorithm or, if another kind was chosen, on the best blind rule."""
        rules = [one for one in answer.candidates if one.kind == "blind"]
        best = answer.chosen if answer.chosen.kind == "blind" else choose(answer.target, rules).chosen
        run = answer.best if best is answer.chosen else best.runs[0]
        (outcome,) = (one for one in self.results if one.place == run.run)
        rule = self._blind_rules(outcome, federation)(answer.target, run.validation.level)
        return (f"Blind rule on {best.label}, seed {run.seed}: {rule.figures()}", *rule.doubts())

    def scores(self, run: Outcome) -> dict[str, ScoreHistogram]:
        """The score histograms of a run on its "training", "validation" and "test" rows."""
        return self._folder(run).scores(self.record.favourable, self.record.excluded)

    def client_scores(self, run: Outcome) -> dict[str, dict[str, ScoreHistogram]]:
        """The same of each client's own rows, by client and part; empty if row owners are unknown."""
        names = (str(one["client"]) for one in self.record.clients)
        scores = self._folder(run).client_scores(self.record.favourable, self.record.excluded)
        return dict(zip(names, scores, strict=False))

    def _folder(self, run: Outcome) -> RunFolder:
        require(isinstance(run, Outcome), f"Give a run of this study, such as study.results[0]; got {short_repr(run)}.")
        return RunFolder(self.folder / run.place)

    def _runs(self, alpha: float | None) -> list[Outcome]:
        """The runs at one skew."""
        skews = self.alphas
        if alpha is not None:
            require_number(alpha, "alpha")
        require(alpha is not None or len(skews) == 1, f"The study has several skews: give alpha, one of {skews}.")
        some = ", ".join(str(skew) for skew in skews if skew is not None)
        known = alpha is None or not skews or alpha in skews
        require(known, f"The study has no alpha {alpha}: {f'its own are {some}' if some else 'leave it out'}.")
        return [run for run in self.results if alpha in (None, run.alpha)]

    @property
    def alphas(self) -> list[float | None]:
        """The skews in the order in which they were given."""
        return list(dict.fromkeys(run.alpha for run in self.results))

    def table(self, style: Literal["text", "markdown", "latex", "csv"] = "text", width: int = 100) -> str:
        """The paper's table: accuracy and fairness gaps in percent, mean and standard deviation over seeds."""
        from rich.console import Console

        from ffalm.report import rendering, study_tables

        require_known("style of a table", ("text", "markdown", "latex", "csv"), style)
        whole = isinstance(width, Integral) and width > 0
        require(whole, f"The width of a table is a number of characters from 1 up; got {short_repr(width)}.")
        if style == "csv":
            return rendering.to_csv(study_tables.tidy(self.outcome))
        table = study_tables.results(self.outcome)
        if style != "text":
            return rendering.to_markdown(table) if style == "markdown" else rendering.to_latex(table)
        console = Console(width=width, no_color=True, force_terminal=False)
        with console.capture() as captured:
            rendering.print_whole(console, table)
        return captured.get()

    def to_dataframe(self) -> DataFrame:
        """One row per run: algorithm, skew, seed, every test metric, and how the run ended."""
        from pandas import DataFrame

        return DataFrame(
            {
                "label": run.label,
                "algorithm": run.algorithm,
                "alpha": run.alpha,
                "seed": run.seed,
                **run.test,
                "rounds": len(run.history),
                "seconds": run.seconds,
                "diverged": run.diverged,
                "degenerate": run.degenerate or None,
            }
            for run in self.results
        )

    def best(
        self, metric: str = "accuracy", subject_to: Mapping[str, float] | None = None, alpha: float | None = None
    ) -> Best:
        """The algorithm with the best mean test metric among those that meet every bound of `subject_to`.

        `study.best(subject_to={"dpd": 0.05})` is the most accurate algorithm whose mean DPD is at most 0.05. Bounds are
        upper bounds for gaps and losses, lower bounds for accuracies; of `loss_gap`, which has a sign, the size
        counts. Only algorithms all of whose runs finished with all of these metrics defined, and none of which is
        degenerate, are candidates. A study of several skews needs `alpha`.
        """
        require(
            subject_to is None or isinstance(subject_to, Mapping),
            f"The bounds are a dict of numbers by metric, such as {{'dpd': 0.05}}; got {short_repr(subject_to)}.",
        )
        bounds = {name: require_number(bound, f"bound of {name}") for name, bound in (subject_to or {}).items()}
        runs = self._runs(alpha)
        known = sorted({name for run in runs for name in run.test})
        for name in (metric, *bounds):
            _require_metric(name, known)
        found = []
        for label in dict.fromkeys(run.label for run in runs):
            own = [run for run in runs if run.label == label]
            if degenerate(own):
                continue
            sizes = {name: fmean(_size(run, name) for run in own) for name in (metric, *bounds)}
            if all(_meets(sizes[name], name, bound) for name, bound in {metric: math.nan, **bounds}.items()):
                means = {name: fmean(run.test.get(name, math.nan) for run in own) for name in known}
                found.append((sizes[metric], Best(label, own[0].alpha, means, own)))
        if not found:
            signs = {name: ">=" if more_is_better(name) else "<=" for name in bounds}
            conditions = ", ".join(f"{name} {signs[name]} {bound:g}" for name, bound in bounds.items())
            meets = f"meets {conditions} with" if conditions else "has"
            raise UserError(
                f"No algorithm {meets} all of its runs finished and sound: `to_dataframe()` shows which diverged, are "
                "degenerate or have undefined metrics."
            )
        return max(found, key=lambda one: one[0] if more_is_better(metric) else -one[0])[1]

    def write_report(self, folder: str | Path | None = None) -> dict[str, Path]:
        """Write tables, curves and the page, into the study's folder unless another is given; returns the files."""
        from ffalm.report import write_report

        place = self.folder if folder is None else folder_of(folder)
        written = write_report(self.outcome, place)
        if place == self.folder:
            self._write_repairs()
        return written

    def _write_repairs(self) -> None:
        """Write each answer's thresholds, or its blind rule with the model of the groups, beside the chosen model.

        Those of earlier answers are removed.
        """
        chosen = {answer.best.run: answer for answer in self.outcome.answers}
        for run in self.results:
            folder, answer = self._folder(run), chosen.get(run.place)
            if not self.record.federated:  # its coordinator keeps the blind rules that sites counted for
                folder.drop_blind_rules()
                if answer is not None and answer.chosen.kind == "blind":
                    self._keep_blind_rule(run, answer)
            if answer is not None:
                write_atomic(folder.path / REPAIR, with_checksum(answer.best.repair))
            else:
                (folder.path / REPAIR).unlink(missing_ok=True)

    def _keep_blind_rule(self, run: Outcome, answer: Answer) -> None:
        """Write the model of the groups and the counts for the card, which a blind rule needs beside its weights."""
        folder, models = self._folder(run), self.blind_model(run)
        models.groups.network.save(folder.path / GROUPS)
        folder.keep_blind_rules(models.stored(answer.target, answer.best.validation.level))


def _require_metric(name: Any, known: Sequence[str]) -> None:
    require(
        isinstance(name, str) and name in known,
        f"The study has no test metric {short_repr(name)}: choose one of {', '.join(known)}.",
    )


def _size(run: Outcome, metric: str) -> float:
    """A test metric without its sign, which only `loss_gap` has."""
    return abs(run.test.get(metric, math.nan))


def _meets(mean: float, metric: str, bound: float) -> bool:
    """Whether a mean is defined and within its bound; a bound of NaN is none."""
    return math.isfinite(mean) and (math.isnan(bound) or (mean >= bound if more_is_better(metric) else mean <= bound))
