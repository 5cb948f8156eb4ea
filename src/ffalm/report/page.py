"""`report.html`: one file with everything about a study, which opens offline.

Its content security policy forbids every network request, and every script except those included here, which
are identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome
from ffalm.report import study_tables
from ffalm.report.answer_card import answer_card
from ffalm.report.answer_report import candidates, sites
from ffalm.report.curves import Chart
from ffalm.report.overview import overview
from ffalm.report.rendering import asset, environment, to_csv, to_latex, to_markdown
from ffalm.report.summary import baseline_label, metric_name, metric_title, skew
from ffalm.report.summary_text import summary_text
from ffalm.report.tables import TIMES, percent
from ffalm.report.trade_off import by_skew, trade_off

#: Algorithms that the page's heading names.
_MOST_NAMED = 3
_FACTS = {"data": "Data", "label": "Predicted", "favourable": "Favourable outcome", "groups": "Compared groups"}


def render(study: StudyOutcome, charts: Sequence[Chart] = (), notes: Iterable[str] = ()) -> str:
    """The page with these curves, and with these notes in addition to the study's own."""
    scripts = [asset("sort.js"), *([asset("hover.js")] if charts else [])]
    groups = len(study.compared)
    results = study_tables.results(study)
    favourable = study.task.get("favourable", "the favourable outcome")
    parts: dict[str, Any] = {
        "cards": [answer_card(answer, favourable) for answer in study.answers],
        "texts": summary_text(study),
        "trade_offs": [(alpha, both) for alpha in study.alphas() if (both := trade_off(study, alpha))],
        "skews": by_skew(study),
        "by_site": [(one.chosen.alpha, table) for one in study.answers if (table := sites(one))],
        "tried": [(one.chosen.alpha, candidates(one)) for one in study.answers],
        "changes": study_tables.against_baseline(study),
        "groups": study_tables.by_group(study),
        "clients": study_tables.clients(study),
        "per_client": study_tables.per_client(study),
        "settings": study_tables.settings(study),
        "notes": [*study.notes, *notes, *_about_runs(study)],
        "charts": {chart.name: chart for chart in charts},
        "baseline": baseline_label(study),
        "labels": study.labels(),
    }
    return (
        environment()
        .get_template("page.html")
        .render(
            **parts,
            contents=_contents(parts),
            study=study,
            policy=_policy(scripts),
            style=asset("page.css"),
            heading=_heading(study),
            facts=_facts(study),
            diverged=sum(outcome.diverged is not None for outcome in study.outcomes),
            flawed=sum(bool(outcome.degenerate) for outcome in study.outcomes),
            results=overview(study),
            sources={"LaTeX": to_latex(results), "Markdown": to_markdown(results)},
            downloads={
                "tables.csv": _download("text/csv", to_csv(study_tables.tidy(study))),
                "tables.tex": _download("application/x-tex", to_latex(results)),
                "tables.md": _download("text/markdown", to_markdown(results)),
            },
            outcome=favourable,
            gap=f"the largest difference between two of the {groups} groups"
            if groups > 2
            else "the gap between groups",
            margins=_margins(study.outcomes),
            made=_made(study),
            scripts=scripts,
            plural=plural,
            skew=skew,
        )
    )


def _contents(parts: Mapping[str, Any]) -> dict[str, str]:
    """The headings of the sections that the page has, by their anchors."""
    asked, charts = bool(parts["cards"]), parts["charts"]
    present = {
        "answer": ("The answer", asked),
        "pays": ("Who pays", asked),
        "short": ("In short", not asked and len(parts["texts"]) == 1),
        "trade": ("Accuracy against fairness", parts["trade_offs"]),
        "skews": ("By skew", parts["skews"]),
        "results": ("Results", parts["labels"]),
        "sites": ("At each site", parts["by_site"]),
        "candidates": ("All candidates", parts["tried"]),
        "against": (f"Change against {parts['baseline']}", parts["changes"]),
        "groups": ("Group by group", parts["groups"]),
        "curves": ("Round by round", "metrics" in charts),
        "duals": ("Duals", "duals" in charts),
        "each": ("Metrics by client", parts["per_client"]),
        "clients": ("Rows by client", parts["clients"]),
        "settings": ("Settings", parts["settings"]),
        "notes": ("Notes", parts["notes"]),
        "again": ("Run it again", True),
    }
    return {name: heading for name, (heading, there) in present.items() if there}


def _made(study: StudyOutcome) -> str:
    """When the runs were finished, how long they took, and with which versions."""
    versions = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    when = f"The last run was finished {study.finished}. " if study.finished else ""
    took = f"Computing took {duration(sum(outcome.seconds for outcome in study.outcomes))}"
    return f"{when}{took}{f' with {versions}' if versions else ''}."


def _download(kind: str, text: str) -> str:
    """A file as a data URL."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def plural(count: int, word: str) -> str:
    """A count with its word."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds, or minutes and hours, as text."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _heading(study: StudyOutcome) -> str:
    """The title, with the number of algorithms instead of their names if there are many."""
    many = len(study.labels())
    return f"{many} algorithms on {study.task['data']}" if many > _MOST_NAMED and "data" in study.task else study.title


def _facts(study: StudyOutcome) -> dict[str, str]:
    """What was predicted and for whom, and the size of the study."""
    seeds = len({outcome.seed for outcome in study.outcomes})
    counts = [(len(study.labels()), "algorithm"), (seeds, "seed"), (len(study.alphas()), "skew")]
    shown = f" {TIMES} ".join(plural(count, word) for count, word in counts if count > 1 or word == "algorithm")
    return {
        **{_FACTS.get(key, key): value for key, value in study.task.items()},
        **({"Compared" if len(study.labels()) > 1 else "Run": shown} if study.outcomes else {}),
        **({"Finished": study.finished} if study.finished else {}),
    }


def _margins(outcomes: Sequence[Outcome]) -> str:
    """The mean half width of a run's test intervals, if the table shows only the spread over seeds."""
    runs = [outcome for outcome in outcomes if outcome.diverged is None]
    if len({run.seed for run in runs}) < 2:
        return ""
    parts = []
    for metric in HEADLINE:
        ends = [run.intervals[metric] for run in runs if metric in run.intervals]
        widths = [(high - low) / 2 for low, high in ends if math.isfinite(high - low)]
        if widths:
            parts.append(f"{metric_title(metric)} {percent(sum(widths) / len(widths), 1)}")
    return ", ".join(parts)


def _about_runs(study: StudyOutcome) -> list[str]:
    """A note for each metric that is undefined in a finished run; the study's own notes are about diverged runs."""
    found = []
    for outcome in study.outcomes:
        run = f"{outcome.label}, seed {outcome.seed}{skew(outcome.alpha, ', ')}"
        lacking = [metric_name(name) for name in HEADLINE if not math.isfinite(outcome.test.get(name, math.nan))]
        if outcome.diverged is None and lacking:
            found.append(f"{run}: {' and '.join(lacking)} undefined on the test rows; it counts in no mean.")
    return found


def _policy(scripts: Sequence[str]) -> str:
    """The content security policy: run only the scripts with these hashes, and fetch nothing."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
