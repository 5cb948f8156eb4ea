"""`report.html`: one file that says everything about a study and opens offline.

Its content security policy forbids every network request, and every script but the two included here, which are
identified by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome
from ffalm.report import study_tables
from ffalm.report.answer_report import candidates, sentences, sites, who_pays
from ffalm.report.drawing import Drawings
from ffalm.report.rendering import asset, environment, to_latex, to_markdown
from ffalm.report.summary import baseline_label, in_sentence, metric_name, skew
from ffalm.report.summary_text import summary_text
from ffalm.report.tables import TIMES, percent

_FACTS = {"data": "Data", "label": "Predicted", "favourable": "Favourable outcome", "groups": "Compared groups"}


def render(study: StudyOutcome, drawings: Drawings | None, notes: Iterable[str]) -> str:
    """The page; without drawings it has no charts, and the notes say why."""
    charts = {chart.name: chart for chart in drawings.charts} if drawings else {}
    scripts = [drawings.library, asset("page.js")] if drawings and charts else []
    groups = len(study.compared)
    results = study_tables.results(study)
    return (
        environment()
        .get_template("page.html")
        .render(
            study=study,
            policy=_policy(scripts),
            style=asset("page.css"),
            facts=_facts(study),
            diverged=sum(outcome.diverged is not None for outcome in study.outcomes),
            texts=summary_text(study),
            answers=[
                (answer, sentences(answer), who_pays(answer), candidates(answer), sites(answer))
                for answer in study.answers
            ],
            results=results,
            sources={"LaTeX": to_latex(results), "Markdown": to_markdown(results)},
            outcome=study.task.get("favourable", "the favourable outcome"),
            gap=f"the largest difference between two of the {groups} groups"
            if groups > 2
            else "the gap between groups",
            margins=_margins(study.outcomes),
            baseline=baseline_label(study),
            changes=study_tables.against_baseline(study),
            groups=study_tables.by_group(study),
            clients=study_tables.clients(study),
            settings=study_tables.settings(study),
            notes=[*study.notes, *notes, *_about_runs(study)],
            labels=study.labels(),
            charts=charts,
            scripts=scripts,
            plural=plural,
            skew=skew,
        )
    )


def plural(count: int, word: str) -> str:
    """A count with its word."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds, or minutes and hours, as text."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _facts(study: StudyOutcome) -> dict[str, str]:
    """What was predicted, for whom, and how much was run."""
    seeds = len({outcome.seed for outcome in study.outcomes})
    counts = [(len(study.labels()), "algorithm"), (seeds, "seed"), (len(study.alphas()), "skew")]
    shown = f" {TIMES} ".join(plural(count, word) for count, word in counts if count > 1 or word == "algorithm")
    return {
        **{_FACTS.get(key, key): value for key, value in study.task.items()},
        "Compared" if len(study.labels()) > 1 else "Run": shown,
        "Computing": duration(sum(outcome.seconds for outcome in study.outcomes)),
    }


def _margins(outcomes: Sequence[Outcome]) -> str:
    """The mean half width of a run's test intervals, where the table shows the spread over seeds alone."""
    runs = [outcome for outcome in outcomes if outcome.diverged is None]
    if len({run.seed for run in runs}) < 2:
        return ""
    parts = []
    for metric in HEADLINE:
        ends = [run.intervals[metric] for run in runs if metric in run.intervals]
        widths = [(high - low) / 2 for low, high in ends if math.isfinite(high - low)]
        if widths:
            parts.append(f"{in_sentence(metric)} {percent(sum(widths) / len(widths), 1)}")
    return ", ".join(parts)


def _about_runs(study: StudyOutcome) -> list[str]:
    """A note for each metric that a finished run has no value of; the study's own notes tell of those that diverged."""
    found = []
    for outcome in study.outcomes:
        run = f"{outcome.label}, seed {outcome.seed}{skew(outcome.alpha, ', ')}"
        lacking = [metric_name(name) for name in HEADLINE if not math.isfinite(outcome.test.get(name, math.nan))]
        if outcome.diverged is None and lacking:
            found.append(f"{run}: {' and '.join(lacking)} undefined on the test rows; it counts in no mean.")
    return found


def _policy(scripts: Sequence[str]) -> str:
    """What the browser may do: show what is in the file, run the scripts with these hashes, fetch nothing."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
