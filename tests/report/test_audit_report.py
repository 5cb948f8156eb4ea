"""The tables, sentences and page of an audit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.auditing.test_fairness_audit import audited, scored

import ffalm
from ffalm.auditing.fairness_audit import Audit
from ffalm.report.audit_report import failed_sentences, gaps, groups, page, score_table, sentences, sweep
from ffalm.system.files import json_text


@pytest.fixture(scope="module")
def found() -> Audit:
    frame = scored()
    frame.loc[:5, "race"] = "<d>"
    frame.loc[10:20, "race"] = None
    return audited(frame, prediction=None, score="score", group=["race", "sex"])


def test_every_metric_and_group_has_a_row(found: Audit) -> None:
    race = found["race"]
    assert len(gaps(found, race).rows) == len(race.metrics)
    assert "groups that are compared; accuracy and AUC over all rows." in gaps(found, race).caption
    shown = groups(found, race)
    assert [one.cells[0].value for one in shown.rows] == ["a", "b", "c", "<d>", "unknown"]
    assert [one.note for one in shown.rows][-2:] == ["fewer than 30 rows", "no group given, not compared"]
    assert shown.rows[0].cells[3].interval is not None
    assert groups(found, race, intervals=False).rows[0].cells[3].interval is None
    scores, swept = score_table(found, race), sweep(found, race)
    assert scores is not None and swept is not None and len(swept.rows) == 19
    assert score_table(audited(scored()), race) is None


def test_differences_are_in_points_and_shares_in_percent(found: Audit) -> None:
    told = {one.cells[0].value: one.cells[1].value for one in gaps(found, found["race"]).rows}
    assert all(str(told[name]).endswith(" points") for name in ("DPD", "EOD", "accuracy parity difference"))
    assert all(str(told[name]).endswith(" %") for name in ("accuracy", "worst group's accuracy"))
    assert float(str(told["impact ratio"])) <= 1


def test_a_page_without_true_outcomes_has_no_rates_of_them() -> None:
    text = page(audited(scored(), label=None, prediction=None, score="score"))
    assert "Other thresholds of the score" in text and "EOD" not in text and "AUC" not in text and "TPR" not in text


def test_sentences_tell_small_and_unknown_groups(found: Audit) -> None:
    told = " ".join(sentences(found))
    assert "groups of fewer than 30 rows are shown, not compared: <d>" in told
    assert "11 rows have no group" in told


def test_bounds_are_not_said_to_hold_for_groups_that_unknown_rows_may_make_large_enough() -> None:
    counts = {"a": (120, 200), "b": (116, 200), "c": (10, 25), None: (20, 40)}
    rows = [(group, int(row < chosen)) for group, (chosen, all_rows) in counts.items() for row in range(all_rows)]
    frame = pd.DataFrame(rows, columns=["group", "said"])
    told = " ".join(sentences(ffalm.audit(frame, prediction="said", group="group", favourable=1)))
    assert "the DPD between the groups that are compared here is between 0.0 and 10.9 points" in told
    assert "With some of them, c would be compared too" in told
    large = " ".join(sentences(ffalm.audit(frame, prediction="said", group="group", favourable=1, min_group=10)))
    assert "the DPD of all rows is between" in large and "would be compared too" not in large


def test_the_page_is_self_contained_and_escapes_what_the_file_says(found: Audit, tmp_path: Path) -> None:
    failures = found.failures(["dpd > 0"])
    text = page(found, failures)
    assert "&lt;d&gt;" in text and "<d>" not in text
    assert "default-src &#39;none&#39;" in text and "http" not in text.replace("http-equiv", "")
    assert all(sentence.split(":")[0] in text for sentence in [failures[0].grouping])
    assert found.write_html(tmp_path / "audit.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_everything_is_told_to_machines(found: Audit) -> None:
    plain = json.loads(json_text(found.to_dict()))
    assert plain["groupings"][0]["metrics"]["dpd"]["value"] == pytest.approx(found.metrics["dpd"])
    assert plain["groupings"][0]["bounds"]["dpd"][0] <= plain["groupings"][0]["bounds"]["dpd"][1]
    assert failed_sentences(found.failures(["dpd > 0"]))[0].startswith("dpd > 0 holds by race")
