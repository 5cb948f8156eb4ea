"""`ffalm audit`: fairness of predictions or scores made anywhere; exit code 3 if a condition of --fail-if holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.cli.output import print_json, print_results
from ffalm.cli.text_format import Decimal, Encoding, Separator, text_format
from ffalm.system.files import require_output, require_replaceable

if TYPE_CHECKING:
    from ffalm.auditing.audit_facts import Failure
    from ffalm.auditing.fairness_audit import Audit

#: The exit code of an audit that failed.
FAILED = 3

_column = partial(typer.Option, rich_help_panel="Columns of the file")
_output = partial(typer.Option, rich_help_panel="Output")
_WIDE = 120  # columns of a terminal with room for an interval next to every rate


def audit(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file of predicted rows.", show_default=False)],
    group: Annotated[
        list[str], _column(help="Column of groups; several, comma-separated or repeated, are crossed too.")
    ],
    label: Annotated[
        str | None, _column(help="Column of true outcomes. Default: none; then selection rates alone are compared.")
    ] = None,
    prediction: Annotated[str | None, _column(help="Column of predicted outcomes.")] = None,
    score: Annotated[str | None, _column(help="Column of scores; higher is more favourable.")] = None,
    favourable: Annotated[str | None, _column(help="Favourable value of label and prediction. Default: 1.")] = None,
    decision: Annotated[
        float | None,
        _column(
            help="With scores alone: from which score the favourable outcome is predicted. Default: 0.5 for "
            "probabilities, else 0."
        ),
    ] = None,
    min_group: Annotated[int, _column(help="Groups with fewer rows are shown but not compared.")] = 30,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    fail_if: Annotated[
        list[str] | None, _output(help='Exit with code 3 if this holds, such as "dpd > 0.1"; repeatable.')
    ] = None,
    out: Annotated[Path | None, _output(help="HTML file for the report.")] = None,
    as_json: Annotated[bool, _output("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Audit predictions or scores made anywhere: every fairness metric by group, with intervals.

    Exit codes: 0 done, 2 a mistake in the command or the file, 3 a condition of --fail-if holds.
    """
    from ffalm.auditing.fairness_audit import audit as audited

    require_output(out, file, "an HTML file")
    found = audited(
        file,
        label=label,
        prediction=prediction,
        score=score,
        group=group,
        favourable=favourable,
        decision=decision,
        min_group=min_group,
        **text_format(separator, decimal, encoding),
    )
    finish_audit(found, fail_if or (), out, as_json)


def finish_audit(found: Audit, conditions: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Write the page, print everything, and exit with code 3 if a condition holds."""
    from ffalm.report.audit_report import PAGE_MARK, to_plain, write_page

    failures = found.failures(conditions)
    if out is not None:
        require_replaceable(out, PAGE_MARK, "the page of an audit")
        write_page(found, out, failures)
    if as_json:
        print_json(to_plain(found, failures))
    else:
        _show(found, failures, out)
        if conditions and not failures:
            print(f"Passed: no condition holds ({'; '.join(conditions)}).")
    if failures:
        raise typer.Exit(FAILED)


def _show(found: Audit, failures: Sequence[Failure], out: Path | None) -> None:
    from rich.console import Console

    from ffalm.report.audit_report import failed_sentences, gaps, groups, score_table, sentences, sweep

    wide = Console().width >= _WIDE
    tables = []
    for one in found.groupings:
        tables += [groups(found, one, wide), gaps(found, one, brief=not wide), score_table(found, one)]
        tables += [sweep(found, one)] if one is found.groupings[0] else []
    print_results(tables, (*sentences(found), *found.notes))
    for sentence in failed_sentences(failures):
        print_results([], heading=f"Failed: {sentence}")
    if out is not None:
        print_results([], [f"Report: {out}"])
