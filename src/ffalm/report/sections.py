"""The sections of the page, each a function from a study to HTML; empty where a study has nothing to say."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome
from ffalm.report.markup import Markup, element, joined
from ffalm.report.parts import NOTHING, bodies, plural, scroll
from ffalm.report.reading import Reading, read
from ffalm.report.summary import Row
from ffalm.report.tables import (
    HEADS,
    TIMES,
    build,
    mean_text,
    metric_name,
    note,
    percent,
    seeds_text,
    skew,
    spread_text,
    to_latex,
    to_markdown,
)


def asked(study: StudyOutcome) -> Markup:
    """What was predicted, for whom, and how much was run to find out."""
    names = {
        "data": "Data",
        "label": "Predicted",
        "favourable": "Favourable outcome",
        "groups": "Compared groups",
    }
    facts = [(names.get(key, key), value) for key, value in study.task.items()]
    seeds = len({outcome.seed for outcome in study.outcomes})
    counts = [(len(study.labels()), "algorithm"), (seeds, "seed"), (len(study.alphas()), "skew")]
    shown = f" {TIMES} ".join(plural(count, word) for count, word in counts if count > 1 or word == "algorithm")
    facts.append(("Compared" if len(study.labels()) > 1 else "Run", shown))
    facts.append(("Computing", duration(sum(outcome.seconds for outcome in study.outcomes))))
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element("dl", *pairs, class_="facts")


def warning(study: StudyOutcome) -> Markup:
    """Diverged runs, said at the top, where they cannot be overlooked."""
    lost = sum(outcome.diverged is not None for outcome in study.outcomes)
    if not lost:
        return NOTHING
    link = element("a", "see the notes", href="#notes-heading")
    verb = "is" if lost == 1 else "are"
    text = f"{lost} of {plural(len(study.outcomes), 'run')} diverged and {verb} in no mean below: "
    return element("p", element("strong", text), link, ".", class_="warning", role="note")


def short(study: StudyOutcome) -> Markup:
    """The table in sentences."""
    readings = read(study)
    return joined(*[_reading(reading, len(readings) > 1) for reading in readings])


def _reading(reading: Reading, several: bool) -> Markup:
    heading = element("h3", skew(reading.alpha)) if several else NOTHING
    answers = [element("p", sentence, class_="answer") for sentence in reading.answer]
    details = [element("li", sentence) for sentence in reading.details]
    return joined(heading, *answers, element("ul", *details) if details else NOTHING)


def results(study: StudyOutcome) -> Markup:
    """The table itself, what its columns mean here, and its source for a paper."""
    table = build(study)
    heads = [element("th", head, scope="col", class_="number") for head in [*HEADS.values(), "Seeds"]]
    head = element("thead", element("tr", element("th", "Algorithm", scope="col"), *heads))
    body = bodies(table.rows, len(HEADS) + 2, table.several_alphas, _result)
    copies = [_copy("LaTeX", to_latex(table)), _copy("Markdown", to_markdown(table))]
    caption = element("caption", table.caption)
    shown = scroll(element("table", caption, head, *body))
    return joined(shown, _meaning(study), _sampling(study), element("div", *copies, class_="copies"))


def _result(row: Row) -> Markup:
    cells = []
    for cell in row.cells.values():
        mean = element("strong", mean_text(row, cell)) if cell.best else element("span", mean_text(row, cell))
        spread = element("span", spread_text(cell), class_="spread")
        cells.append(element("td", mean, " ", spread, class_="number best" if cell.best else "number"))
    aside = element("span", note(row), class_="note") if note(row) else NOTHING
    name = element("th", row.label, aside, scope="row")
    return element("tr", name, *cells, element("td", seeds_text(row), class_="number"))


def _meaning(study: StudyOutcome) -> Markup:
    outcome = study.task.get("favourable", "the favourable outcome")
    count = len(study.group_names)
    several = count > 2
    gap = f"the largest difference between two of the {count} groups" if several else "the gap between groups"
    caution = " A small group can lie far apart by chance alone: see how many rows each has, group by group."
    return element(
        "p",
        element("strong", "DPD"),
        f", demographic parity difference: {gap} in how often “{outcome}” is predicted. ",
        element("strong", "EOD"),
        f", equal opportunity difference: the same among those whose true outcome is “{outcome}”. ",
        f"Both in percentage points; 0 means no gap.{caution if several else ''}",
        class_="quiet",
    )


def _sampling(study: StudyOutcome) -> Markup:
    """How far chance in the choice of test rows reaches, where the table shows the spread over seeds alone."""
    runs = [outcome for outcome in study.outcomes if outcome.diverged is None]
    halves = {}
    for metric in HEADLINE:
        ends = [run.intervals[metric] for run in runs if metric in run.intervals]
        widths = [(high - low) / 2 for low, high in ends if math.isfinite(high - low)]
        if widths:
            halves[metric] = percent(sum(widths) / len(widths), 1)
    if len({run.seed for run in runs}) < 2 or not halves:
        return NOTHING
    names = {metric: "accuracy" if metric == "accuracy" else metric_name(metric) for metric in halves}
    reach = ", ".join(f"{names[metric]} {value}" for metric, value in halves.items())
    return element(
        "p",
        element("strong", "±"),
        " is over seeds. Chance chose the test rows as well: by their sampling alone, the 95 % interval of a single "
        f"run reaches, on average, this many points to either side: {reach}.",
        class_="quiet",
    )


def _copy(name: str, text: str) -> Markup:
    return element("details", element("summary", f"As {name}"), element("pre", element("code", text), tabindex="0"))


def settings(study: StudyOutcome) -> Markup:
    """Every choice a reader needs to judge the numbers."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in study.choices.items()
        if name != "command"
    ]
    return scroll(element("table", element("tbody", *rows), class_="settings")) if rows else NOTHING


def notes(study: StudyOutcome, more: Iterable[str] = ()) -> Markup:
    """Caveats: those of the study, each run that diverged, each metric without a value."""
    found = [*study.notes, *more]
    for outcome in study.outcomes:
        run = f"{outcome.label}, seed {outcome.seed}{skew(outcome.alpha, ', ')}"
        if outcome.diverged is not None:
            found += _told(outcome, run, study.notes)
            continue
        lacking = [metric_name(name) for name in HEADLINE if not math.isfinite(outcome.test.get(name, math.nan))]
        if lacking:
            found.append(f"{run}: {' and '.join(lacking)} undefined on the test rows; it counts in no mean.")
    return element("ul", *[element("li", text) for text in found]) if found else NOTHING


def _told(outcome: Outcome, run: str, already: list[str]) -> list[str]:
    """Why a run stopped, unless the study's own notes say it of this seed."""
    reason = outcome.diverged or ""
    if any(reason in text and f"seed {outcome.seed}" in text for text in already):
        return []
    return [f"{run}: {reason}" if "diverged" in reason else f"{run} diverged: {reason}"]


def again(study: StudyOutcome) -> Markup:
    """How to get the same numbers."""
    command = study.choices.get("command")
    shown = element("pre", element("code", command), tabindex="0") if command else NOTHING
    text = (
        "The file config.toml in the run folder holds every setting and seed. On the same machine and engine "
        "it gives the same numbers bit for bit; on another engine, up to rounding."
    )
    return joined(shown, element("p", text))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
