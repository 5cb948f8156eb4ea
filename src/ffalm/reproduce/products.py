"""Making the tables and the figure: run what is missing, then write each in every form and say what to print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ffalm.files import write_whole
from ffalm.outcome import StudyOutcome
from ffalm.report import CHARTS_LEFT_OUT, write_report
from ffalm.report.drawing import pictures
from ffalm.report.tables import skew
from ffalm.reproduce import comparison, figure, frontier, frontier_figure, rounds, sensitivity, sheets
from ffalm.reproduce.choices import SCORED, SETTLED, WITHOUT_A_ROLE, statements
from ffalm.reproduce.paper import ALPHAS, TITLES, data_title
from ffalm.reproduce.request import Request
from ffalm.reproduce.sheets import Sheet
from ffalm.reproduce.studies import OF_THE_MACHINE, Runner, carried_out

SMOKE = (
    "SMOKE: drawn faces, a small network and a few rounds, to see that everything works; these numbers say nothing "
    "about the paper's and stand beside none of them."
)
_ONE_SEED = "one run's, with the 95 % interval over the sampling of the test rows in brackets,"
_TITLES = {
    "table-2": "Table 2 of the paper (severe heterogeneity)",
    "table-3": "Table 3 of the paper (other levels of heterogeneity)",
    "figure-2": "Figure 2 of the paper (validation curves)",
    "sensitivity": "Sensitivity to what the paper leaves open",
    "frontier": "Settings of FFALM, judged on validation rows",
}


@dataclass(frozen=True)
class Product:
    """One table or figure: what to print, what a reader must know, and the files that hold it."""

    name: str
    title: str
    sheets: list[Sheet]
    notes: list[str]
    choices: list[str] = field(default_factory=list)  # what the paper leaves open, and what was chosen
    files: dict[str, Path] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)  # the table for machines


def table(name: str, request: Request, out: Path, run: Runner) -> Product:
    """`table-2` or `table-3`: the paper's numbers, ours and the difference on every data set that is there."""
    studies = _studies(name, request, out, run)
    lines = comparison.compare(studies, with_paper=not request.smoke)
    title = _title(name, request)
    shown = [comparison.wide(lines, f"{title}: {_caption(request)}"), comparison.pull(lines)]
    notes = [*_notes(request), *comparison.warnings(lines), *_of_studies(studies)]
    chosen = _chosen(request, list(studies))
    folder = out / name
    files = _written(folder, name, shown, notes, chosen, comparison.to_csv(lines))
    for data, study in studies.items():
        mine = [line for line in lines if line.data == data]
        reported = replace(
            study,
            title=f"{title}: {data_title(data)}",
            choices={**_open(request, data), **study.choices},
            notes=[*_notes(request), *comparison.beside(mine), *comparison.warnings(mine), *study.notes],
        )
        files[f"{data} report"] = write_report(reported, folder / data)["report.html"]
    printed = [comparison.tall(lines, f"{title}: {_caption(request)}"), shown[1]]
    return Product(name, title, printed, notes, chosen, files, [_plain(line) for line in lines])


def curves(request: Request, out: Path, run: Runner) -> Product:
    """`figure-2`: the validation curves of the runs of table 2, and what they say of the last round and the best."""
    studies = _studies("figure-2", request, out, run)
    title = _title("figure-2", request)
    named = {f"{data_title(data)}": study for data, study in studies.items()}
    lost = comparison.diverged(comparison.compare(studies, with_paper=False))
    means = "Lines are means over the seeds, bands reach from the lowest seed to the highest."
    notes = [*_notes(request), *lost, means]
    if request.chosen["metric"] == "piecewise":
        notes.append("A round keeps no counts to cut in pieces: these gaps are of all validation rows together.")
    folder = out / "figure-2"
    files = _pictured(folder, "figure-2", lambda: figure.specification(named), notes)
    chosen = _chosen(request, list(studies), on_test=False)
    picture = "Validation curves" if "png" in files else None
    rows = rounds.kept(studies)
    if not rows:
        beside = [] if picture is None else [_embedded(picture, "figure-2")]
        files["md"] = write_whole(folder / "figure-2.md", _page(title, beside, notes, chosen).encode())
        return Product("figure-2", title, [], notes, chosen, files)
    shown = [rounds.sheet(rows, f"{title}: percent on the validation part, mean over seeds")]
    reported = "the last round, as the released code does" if request.chosen["round"] == "last" else "the best round"
    notes.append(
        "best is each run's round of the highest validation accuracy, hence a little flattered by its choice; the "
        f"tables report {reported}."
    )
    files |= _written(folder, "figure-2", shown, notes, chosen, rounds.to_csv(rows), picture)
    return Product("figure-2", title, shown, notes, chosen, files, [rounds.plain(one) for one in rows])


def sensitivities(request: Request, out: Path, run: Runner) -> Product:
    """`sensitivity`: FFALM, and where they have variants FairFed and FPFL, with one answer changed at a time."""
    data = list(request.sources())[-1]  # UTKFace where it is there: its runs are many times shorter
    effects = sensitivity.measure(request, out, run, data)
    where = "" if request.smoke else f", {data_title(data)}"
    title = f"{_title('sensitivity', request)}{where}, {skew(sensitivity.ALPHA)}"
    caption = (
        "the base's test metrics in percent, mean ± sample standard deviation over seeds; below it, by how many points "
        "each answer moves them, paired by seed, ± half the 95 % interval; clear changes in bold"
    )
    if len(request.seeds) == 1:
        caption = (
            f"the base's test metrics in percent, {_ONE_SEED} and below it, by how many points each answer moves them"
        )
    shown = [sensitivity.sheet(effects, f"{title}: {caption}"), sensitivity.pull(effects)]
    notes = [*_notes(request), *sensitivity.reading(effects)]
    chosen = _chosen(sensitivity.base_request(request), [data], without=WITHOUT_A_ROLE["sensitivity"])
    files = _written(out / "sensitivity", "sensitivity", shown, notes, chosen, sensitivity.to_csv(effects))
    values = [
        {
            "algorithm": effect.algorithm,
            "label": effect.label,
            "metric": metric,
            "mean": cell.mean,
            "difference": change.mean if (change := effect.changes.get(metric)) else None,
            "interval": change.interval if change else None,
        }
        for effect in effects
        for metric, cell in effect.row.cells.items()
    ]
    return Product("sensitivity", title, shown, notes, chosen, files, values)


def frontiers(request: Request, out: Path, run: Runner) -> Product:
    """`frontier`: the search for settings of FFALM that suit every data set."""
    wanted = [*request.entries(frontier.BASELINES), *frontier.entries()]
    request.check_names(wanted)
    studies = {data: carried_out(request, out, run, data, [frontier.ALPHA], wanted) for data in request.sources()}
    judged = frontier.judge(studies)
    title = _title("frontier", request)
    shown = [frontier.sheet(judged, f"{title}: percent, {skew(frontier.ALPHA)}")]
    notes = [*_notes(request), *frontier.reading(judged), *frontier_figure.left_out(judged)]
    chosen = _chosen(request, list(studies), on_test=False, without=WITHOUT_A_ROLE["frontier"])
    pictured = _pictured(out / "frontier", "frontier", lambda: frontier_figure.specification(judged), notes)
    rows, picture = frontier.to_csv(judged), "The frontier" if "png" in pictured else None
    files = _written(out / "frontier", "frontier", shown, notes, chosen, rows, picture) | pictured
    values = [
        {"data": one.data, "label": one.label, **one.metrics, "worst_loss": one.worst, "stable": one.stable}
        for one in judged
    ]
    return Product("frontier", title, shown, notes, chosen, files, values)


def _pictured(folder: Path, name: str, chart: Callable[[], dict[str, Any] | None], notes: list[str]) -> dict[str, Path]:
    """A figure as PNG and PDF; none, and a note, on hosts without the chart libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        drawn = pictures(specification) if (specification := chart()) is not None else {}
    except ImportError as error:
        notes.append(CHARTS_LEFT_OUT.format(missing=error.name or "a chart library"))
        return {}
    return {ending: write_whole(folder / f"{name}.{ending}", content) for ending, content in drawn.items()}


def _studies(name: str, request: Request, out: Path, run: Runner) -> dict[str, StudyOutcome]:
    """The study of every data set, under the chosen form of the metrics."""
    request.check_names(request.entries())
    found = {}
    for data in request.sources():
        study = carried_out(request, out, run, data, ALPHAS[name], request.entries())
        found[data] = comparison.measured(study, request.chosen["metric"])
    return found


def _title(name: str, request: Request) -> str:
    return f"{_TITLES[name]}{', SMOKE on drawn faces' if request.smoke else ''}"


def _caption(request: Request) -> str:
    spread = "mean ± sample standard deviation over seeds" if len(request.seeds) > 1 else _ONE_SEED
    ours = f"ours is {spread} on the test part, best in bold"
    return f"percent; {ours}" if request.smoke else f"percent; {ours} in each column; the paper reports no spread"


def _notes(request: Request) -> list[str]:
    """What stands before everything else: smoke, missing data sets, settings that are not the paper's."""
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


def _of_studies(studies: dict[str, StudyOutcome]) -> list[str]:
    return [f"{data_title(data)}: {note}" for data, study in studies.items() for note in study.notes]


def _chosen(request: Request, data: list[str], on_test: bool = True, without: Sequence[str] = ()) -> list[str]:
    """What the paper leaves open and what was chosen, then what is settled without a setting.

    `without` names questions that play no role; what looks at validation rows says nothing of the test part.
    """
    told = [sentence for name in data for sentence in statements(request.chosen, name, request.by_hand(name))]
    kept = [sentence for sentence in dict.fromkeys(told) if sentence.partition(",")[0] not in without]
    settled = [] if request.smoke else [sentence for sentence in SETTLED if on_test or sentence != SCORED]
    return [*kept, *settled]


def _open(request: Request, data: str) -> dict[str, str]:
    """The same for a page's table of settings."""
    found = {}
    for sentence in statements(request.chosen, data, request.by_hand(data)):
        name, _, rest = sentence.partition(", ")
        found[f"open: {name}"] = rest
    return found


def _plain(line: comparison.Line) -> dict[str, Any]:
    return {
        "data": line.data,
        "alpha": line.row.alpha,
        "algorithm": line.algorithm,
        "label": line.row.label,
        "seeds": line.row.finished,
        "paper": line.paper,
        "ours": {name: 100 * cell.mean for name, cell in line.row.cells.items()},
        "std": {name: None if cell.std is None else 100 * cell.std for name, cell in line.row.cells.items()},
        "difference": {name: line.difference(name) for name in line.row.cells},
        "largest_dual": line.strength.dual,
        "largest_negative_share": line.strength.negative,
    }


def _written(
    folder: Path,
    name: str,
    shown: list[Sheet],
    notes: list[str],
    chosen: list[str],
    rows: str,
    picture: str | None = None,
) -> dict[str, Path]:
    """The table in Markdown, with the picture beside it where there is one, LaTeX and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    title = shown[0].title.partition(":")[0]
    beside = [] if picture is None else [_embedded(picture, name)]
    contents = {
        "md": _page(title, [*(sheets.to_markdown(one) for one in shown), *beside], notes, chosen),
        "tex": sheets.to_latex(shown[0], f"tab:{name}", [*notes, *chosen]),
        "csv": rows,
    }
    return {ending: write_whole(folder / f"{name}.{ending}", content.encode()) for ending, content in contents.items()}


def _embedded(about: str, name: str) -> str:
    return f"![{about}]({name}.png)\n"


def _page(title: str, parts: Sequence[str], notes: Sequence[str], chosen: Sequence[str]) -> str:
    def listed(heading: str, sentences: Sequence[str]) -> list[str]:
        return [f"## {heading}\n", "\n".join(f"- {sentence}" for sentence in sentences) + "\n"] if sentences else []

    blocks = [f"# {title}\n", *parts, *listed("Notes", notes)]
    return "\n".join([*blocks, *listed("What the paper leaves open, and what was chosen", chosen)])
