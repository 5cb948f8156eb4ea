"""The page's table of changes: every algorithm against the baseline, with its interval drawn about zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby

from ffalm.outcome import HEADLINE, StudyOutcome
from ffalm.report.markup import Markup, element, joined
from ffalm.report.parts import NOTHING, bodies, scroll
from ffalm.report.summary import Change, baseline_label, changes, more_is_better
from ffalm.report.tables import HEADS, signed


def against(study: StudyOutcome) -> Markup:
    """Every algorithm against the baseline with its interval drawn about zero."""
    found = changes(study)
    if not found:
        return NOTHING
    reach = {metric: _reach(change for change in found if change.metric == metric) for metric in HEADLINE}
    lines = [list(group) for _, group in groupby(found, key=lambda change: (change.alpha, change.label))]
    heads = [element("th", head, scope="col") for head in HEADS.values()]
    head = element("thead", element("tr", element("th", "Algorithm", scope="col"), *heads))
    several = len(study.alphas()) > 1
    body = bodies(lines, len(HEADS) + 1, several, lambda line: _line(line, reach), lambda line: line[0].alpha)
    caption = element("caption", _caption(found, baseline_label(study) or ""))
    return scroll(element("table", caption, head, *body, class_="changes"))


def _caption(found: list[Change], baseline: str) -> str:
    text = f"Difference to {baseline} in percentage points, taken seed by seed and averaged"
    if not any(change.interval for change in found):
        return f"{text}; with one pair of runs there is no interval."
    return (
        f"{text}; bars and brackets are 95 % intervals (Student's t over the seeds that both finished, "
        "one comparison at a time)."
    )


def _line(line: list[Change], reach: Mapping[str, float]) -> Markup:
    cells = [_change(change, reach[change.metric]) for change in line]
    return element("tr", element("th", line[0].label, scope="row"), *cells)


def _change(change: Change, reach: float) -> Markup:
    if not math.isfinite(change.mean):
        return element("td", "no pair of seeds to compare", class_="quiet")
    better = (change.mean > 0) == more_is_better(change.metric)
    verdict = ("better" if better else "worse") if change.clear else "open"
    words = "one pair" if change.interval is None else "not clear" if verdict == "open" else verdict
    interval = "" if change.interval is None else f"[{signed(change.interval[0])}, {signed(change.interval[1])}]"
    numbers = joined(element("span", signed(change.mean)), " ", element("span", interval, class_="spread"))
    return element("td", _whisker(change, reach), numbers, element("span", words, class_="verdict"), class_=verdict)


def _whisker(change: Change, reach: float) -> Markup:
    """The interval as a bar about zero; the numbers stand beside it, so it is hidden from screen readers."""

    def place(value: float) -> str:
        return f"{50 + 48 * value / reach:.2f}"

    low, high = change.interval or (change.mean, change.mean)
    parts = [
        element("line", x1="50", x2="50", y1="0", y2="12", class_="zero"),
        element("line", x1=place(low), x2=place(high), y1="6", y2="6", class_="range"),
        element("circle", cx=place(change.mean), cy="6", r="3"),
    ]
    return element("svg", *parts, viewBox="0 0 100 12", class_="whisker", aria_hidden="true")


def _reach(found: Iterable[Change]) -> float:
    ends = [abs(end) for change in found for end in (*(change.interval or ()), change.mean) if math.isfinite(end)]
    return max(ends, default=0.0) or 1.0
