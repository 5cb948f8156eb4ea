"""The experiments: run what is missing, then make tables and figures, and write them in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffalm.config import OF_THE_MACHINE
from ffalm.outcome import StudyOutcome
from ffalm.report import write_report
from ffalm.report.artifact import Artifact, write
from ffalm.report.chart_sheet import sheet
from ffalm.report.curves import metric_chart
from ffalm.report.summary import SPELLED_OUT, skew
from ffalm.reproduce import best_rounds, frontier, frontier_figure, paper_comparison, sensitivity
from ffalm.reproduce.choices import SCORED, SETTLED, WITHOUT_A_ROLE, statements
from ffalm.reproduce.metric_forms import measured
from ffalm.reproduce.paper import ALPHAS, TITLES, data_title
from ffalm.reproduce.request import Request
from ffalm.reproduce.studies import Runner, computed_study

SMOKE = (
    "SMOKE: drawn faces, a small network and a few rounds, to check that everything works; these numbers say "
    "nothing about the paper's and are compared with none of them."
)
_ONE_SEED = "one run's, with the 95 % interval over the sampling of the test rows in brackets,"
_TITLES = {
    "table-2": "Table 2 of the paper (severe heterogeneity)",
    "table-3": "Table 3 of the paper (other levels of heterogeneity)",
    "figure-2": "Figure 2 of the paper (validation curves)",
    "sensitivity": "Sensitivity to what the paper leaves open",
    "frontier": "Settings of FFALM, judged on validation rows",
}


def make(name: str, request: Request, out: Path, run: Runner) -> Artifact:
    """The experiment of this name, written below `out`; only runs that the folder does not hold are computed."""
    if name in ("table-2", "table-3"):
        return table(name, request, out, run)
    return {"figure-2": curves, "sensitivity": sensitivities, "frontier": frontiers}[name](request, out, run)


def table(name: str, request: Request, out: Path, run: Runner) -> Artifact:
    """`table-2` or `table-3`: the paper's numbers, ours and the difference on every data set that is there."""
    studies = _studies(name, request, out, run)
    lines = paper_comparison.compare(studies, with_paper=not request.smoke)
    title, caption = _title(name, request), _caption(request)
    of_studies = [f"{data_title(data)}: {note}" for data, study in studies.items() for note in study.notes]
    found = Artifact(
        name,
        title,
        [paper_comparison.tall(lines, title, caption), paper_comparison.diagnostics(lines)],
        [*_notes(request), *paper_comparison.warnings(lines), *of_studies],
        _chosen(request, list(studies)),
        values=[paper_comparison.record(line) for line in lines],
    )
    shown = [paper_comparison.wide(lines, title, caption), found.tables[1]]
    found = write(found, out / name, paper_comparison.tidy(lines), shown)
    for data, study in studies.items():
        mine = [line for line in lines if line.data == data]
        notes = [*_notes(request), *paper_comparison.beside(mine), *paper_comparison.warnings(mine), *study.notes]
        open_choices = statements(request.chosen, data, request.by_hand(data))
        choices = {f"open: {one.name}": f"{one.question}: {one.answer}" for one in open_choices} | study.choices
        report = replace(study, title=f"{title}: {data_title(data)}", choices=choices, notes=notes)
        found.files[f"{data} report"] = write_report(report, out / name / data)["report.html"]
    return found


def curves(request: Request, out: Path, run: Runner) -> Artifact:
    """`figure-2`: the validation curves of the runs of table 2, and their last and best rounds."""
    studies = _studies("figure-2", request, out, run)
    title = _title("figure-2", request)
    lost = paper_comparison.diverged(paper_comparison.compare(studies, with_paper=False))
    notes = [*_notes(request), *lost, "Lines are means over the seeds, bands span the lowest to the highest seed."]
    if request.chosen["metric"] == "piecewise":
        notes.append("A round keeps no counts to cut in pieces: these gaps are of all validation rows together.")
    rows = best_rounds.last_and_best(studies)
    if rows:
        reported = (
            "the last round, as the released code does" if request.chosen["round"] == "last" else "the best round"
        )
        notes.append(
            "best is each run's round with the highest validation accuracy, biased upwards by this selection; the "
            f"tables report {reported}."
        )
    caption = "percent on the validation part, mean over seeds."
    found = Artifact(
        "figure-2",
        title,
        [best_rounds.table(rows, title, caption)] if rows else [],
        notes,
        _chosen(request, list(studies), on_test=False),
        values=[best_rounds.record(one) for one in rows],
    )
    return write(found, out / "figure-2", best_rounds.tidy(rows), chart=_figure(studies), about="Validation curves")


def sensitivities(request: Request, out: Path, run: Runner) -> Artifact:
    """`sensitivity`: FFALM, FairFed and FPFL with one answer changed at a time."""
    data = list(request.sources())[-1]  # UTKFace if it is there, whose runs are much shorter
    effects = sensitivity.measure(request, out, run, data)
    where = "" if request.smoke else f", {data_title(data)}"
    title = f"{_title('sensitivity', request)}{where}, {skew(sensitivity.ALPHA)}"
    caption = (
        "the base's test metrics in percent, mean ± sample standard deviation over seeds; below it, by how many points "
        "each answer changes them, paired by seed, ± half the 95 % interval; clear changes in bold"
    )
    if len(request.seeds) == 1:
        caption = (
            f"the base's test metrics in percent, {_ONE_SEED} and below it, by how many points each answer changes them"
        )
    found = Artifact(
        "sensitivity",
        title,
        [sensitivity.table(effects, title, f"{caption}. {SPELLED_OUT}."), sensitivity.diagnostics(effects)],
        [*_notes(request), *sensitivity.findings(effects)],
        _chosen(sensitivity.base_request(request), [data], without=WITHOUT_A_ROLE["sensitivity"]),
        values=sensitivity.tidy(effects).records(),
    )
    return write(found, out / "sensitivity", sensitivity.tidy(effects))


def frontiers(request: Request, out: Path, run: Runner) -> Artifact:
    """`frontier`: the search for settings of FFALM that suit every data set."""
    wanted = [*request.entries(frontier.BASELINES), *frontier.entries()]
    request.check_names(wanted)
    studies = {data: computed_study(request, out, run, data, [frontier.ALPHA], wanted) for data in request.sources()}
    judged = frontier.judge(studies)
    title = _title("frontier", request)
    caption = f"percent, {skew(frontier.ALPHA)}. {SPELLED_OUT}."
    found = Artifact(
        "frontier",
        title,
        [frontier.table(judged, title, caption)],
        [*_notes(request), *frontier.findings(judged), *frontier_figure.left_out(judged)],
        _chosen(request, list(studies), on_test=False, without=WITHOUT_A_ROLE["frontier"]),
        values=frontier.tidy(judged).records(),
    )
    chart = frontier_figure.chart(judged)
    drawn = sheet([chart]) if chart else None
    return write(found, out / "frontier", frontier.tidy(judged), chart=drawn, about="The frontier")


def _figure(studies: dict[str, StudyOutcome]) -> str | None:
    """The validation curves of all data sets on one sheet; None if no run has a history."""
    charts = [metric_chart(study, data_title(data)) for data, study in studies.items()]
    drawn = [chart for chart in charts if chart is not None]
    return sheet(drawn) if drawn else None


def _studies(name: str, request: Request, out: Path, run: Runner) -> dict[str, StudyOutcome]:
    """The study of every data set, under the chosen form of the metrics."""
    request.check_names(request.entries())
    found = {}
    for data in request.sources():
        study = computed_study(request, out, run, data, ALPHAS[name], request.entries())
        found[data] = measured(study, request.chosen["metric"])
    return found


def _title(name: str, request: Request) -> str:
    return f"{_TITLES[name]}{', SMOKE on drawn faces' if request.smoke else ''}"


def _caption(request: Request) -> str:
    spread = "mean ± sample standard deviation over seeds" if len(request.seeds) > 1 else _ONE_SEED
    ours = f"ours is {spread} on the test part, best in bold"
    rest = "" if request.smoke else " in each column; the paper reports no spread"
    return f"percent; {ours}{rest}. {SPELLED_OUT}."


def _notes(request: Request) -> list[str]:
    """The first notes: smoke runs, missing data sets, settings that are not the paper's."""
    notes = [SMOKE] if request.smoke else []
    notes += [f"{TITLES[name]} is not in the data root, so its part was left out." for name in request.missing()]
    used = {name: value for name, value in request.settings.items() if name not in TITLES or name in request.sources()}
    leaves = [(path, value) for path, value in _leaves(used) if path not in OF_THE_MACHINE]
    changed = ", ".join(f"{path} = {value}" for path, value in leaves)
    return [*notes, *([f"Set by hand, on top of the paper's settings: {changed}."] if changed else [])]


def _leaves(settings: Any, before: str = "") -> list[tuple[str, Any]]:
    """Every setting by its dotted path."""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += _leaves(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return found


def _chosen(request: Request, data: list[str], on_test: bool = True, without: Sequence[str] = ()) -> list[str]:
    """What the paper leaves open and what was chosen, then what is settled without a setting.

    `without` names questions that have no effect; with `on_test` false, the sentence on the test part is left out.
    """
    open_choices = [one for name in data for one in statements(request.chosen, name, request.by_hand(name))]
    kept = [str(one) for one in dict.fromkeys(open_choices) if one.name not in without]
    settled = [] if request.smoke else [sentence for sentence in SETTLED if on_test or sentence != SCORED]
    return [*kept, *settled]
