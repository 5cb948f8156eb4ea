"""`report.html`: one file that says everything about a study and opens offline.

Its policy forbids the browser every network request, and every script but the two put in here, known by their
hashes.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from string import Template

from ffalm.outcome import StudyOutcome
from ffalm.report import sections
from ffalm.report.comparison import against
from ffalm.report.drawing import Drawing, Drawings
from ffalm.report.groups import groups
from ffalm.report.markup import Markup, element, joined
from ffalm.report.owners import owners
from ffalm.report.parts import NOTHING, section
from ffalm.report.summary import baseline_label

_CAPTIONS = {
    "metrics": "On the validation rows. Lines are means over the runs, bands reach from the lowest run to "
    "the highest, and a cross marks the last value of a run that diverged.",
    "duals": "The multipliers that the server moves to close the gap: they should settle. One that keeps "
    "growing or swinging announces a divergence.",
}


def render(study: StudyOutcome, drawings: Drawings | None, notes: list[str]) -> str:
    """The page; without drawings it has no charts, and the notes say why."""
    charts = {chart.name: chart for chart in drawings.charts} if drawings else {}
    library = drawings.library if drawings and charts else ""
    script = _asset("page.js") if charts else ""
    body = joined(
        sections.asked(study),
        sections.warning(study),
        section("short", "In short", sections.short(study)),
        section("results", "Results on the test rows", sections.results(study)),
        section("against", f"Change against {baseline_label(study)}", against(study)),
        section("groups", "Group by group", groups(study)),
        section("curves", "Round by round", _figure(study, charts.get("metrics"))),
        section("duals", "Duals", _figure(study, charts.get("duals"))),
        section("clients", "Who owned what", owners(study)),
        section("settings", "Settings", sections.settings(study)),
        section("notes", "Notes", sections.notes(study, notes)),
        section("again", "Run it again", sections.again(study)),
    )
    return Template(_asset("page.html")).substitute(
        policy=_policy(library, script),
        title=element("title", study.title),
        heading=element("h1", study.title),
        style=_asset("page.css"),
        body=body,
        data=joined(*[_data(chart) for chart in charts.values()]),
        scripts=joined(*[_script(text) for text in (library, script) if text]),
    )


def _figure(study: StudyOutcome, chart: Drawing | None) -> Markup:
    """The chart as it was drawn, which the script replaces by one that answers the pointer."""
    if chart is None:
        return NOTHING
    what = "Validation accuracy, DPD and EOD" if chart.name == "metrics" else "Duals"
    label = f"{what} by round for {', '.join(study.labels())}; the final numbers are in the results table."
    drawn = element("div", Markup(chart.svg), class_="chart", id=f"chart-{chart.name}", role="img", aria_label=label)
    return element("figure", drawn, element("figcaption", _CAPTIONS[chart.name]))


def _data(chart: Drawing) -> Markup:
    return element("script", Markup(chart.specification), type="application/json", id=f"spec-{chart.name}")


def _script(text: str) -> Markup:
    return element("script", Markup(text), type="module")


def _policy(*scripts: str) -> str:
    """What the browser may do: show what is in the file, run the scripts with these hashes, fetch nothing."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts if text]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def _asset(name: str) -> str:
    return files("ffalm.report").joinpath("assets", name).read_text(encoding="utf-8")
