"""What a notebook shows of federations, results, tallies and studies."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate
from sklearn.metrics import accuracy_score

import ffalm
from ffalm.errors import UserError
from ffalm.frame_html import frame_html
from ffalm.metrics import tally


@pytest.fixture(scope="module")
def federation() -> ffalm.Federation:
    draws = np.random.default_rng(0)

    def part() -> tuple[object, ...]:
        x = draws.normal(size=(60, 3))
        return x, np.where(x[:, 0] > 0, "yes", "no"), np.where(x[:, 1] > 0, "<b>old</b>", "young")

    return ffalm.Federation.from_arrays([part(), part()], part(), part(), favourable="yes")


@pytest.fixture(scope="module")
def result(federation: ffalm.Federation) -> ffalm.Result:
    return ffalm.simulate("fedavg", federation, rounds=2, model="linear")


@pytest.fixture(scope="module")
def study(federation: ffalm.Federation, tmp_path_factory: pytest.TempPathFactory) -> ffalm.Study:
    out: Path = tmp_path_factory.mktemp("study") / "s"
    return ffalm.compare(federation, ["fedavg", "ffalm"], seeds=2, rounds=1, model="linear", target=None, out=out)


def test_by_group_is_the_frame_of_fairlearn() -> None:
    draws = np.random.default_rng(1)
    y, predicted, group = (draws.integers(0, 2, 200) for _ in range(3))
    metrics = {"accuracy": accuracy_score, "selection_rate": selection_rate, "true_positive_rate": true_positive_rate,
               "false_positive_rate": false_positive_rate}  # fmt: skip
    theirs = MetricFrame(metrics=metrics, y_true=y, y_pred=predicted, sensitive_features=pd.Series(group, name="group"))
    ours = tally(y, predicted, group).by_group()
    expected = theirs.by_group
    expected.index = expected.index.astype(str)
    pd.testing.assert_frame_equal(ours[list(metrics)], expected, check_index_type=False)
    assert ours["rows"].tolist() == np.bincount(group).tolist()


def test_a_result_names_its_groups_and_has_one_row_per_round(result: ffalm.Result) -> None:
    assert result.by_group().index.tolist() == ["<b>old</b>", "young"]
    assert result.by_group()["rows"].sum() == 60
    frame = result.to_dataframe()
    assert (frame.index.tolist(), frame["accuracy"].iloc[-1]) == ([1, 2], result.history[-1]["accuracy"])


def test_groups_of_nothing_are_refused(federation: ffalm.Federation) -> None:
    alone = ffalm.Federation(federation.clients, None, None, federation.task)
    untested = ffalm.simulate("fedavg", alone, rounds=1, model="linear")
    with pytest.raises(UserError, match="no test part"):
        untested.by_group()
    assert "<table" in untested._repr_html_()
    stacked = ffalm.Tally.stack([tally([0, 1], [0, 1], [0, 1])] * 3)
    assert repr(stacked) == "Tally(3 Tallies, 6 rows, 2 labels, 2 groups)"
    assert stacked._repr_html_() is None
    with pytest.raises(UserError, match="one Tally"):
        stacked.by_group()


def test_notebooks_show_tables_with_every_text_escaped(
    federation: ffalm.Federation, result: ffalm.Result, study: ffalm.Study
) -> None:
    for shown in (federation, result, study, result.tally):
        page = shown._repr_html_()  # type: ignore[union-attr]
        assert page is not None and "<table" in page and "<b>old" not in page
        assert len(repr(shown)) < 200
    assert "&lt;b&gt;old" in result._repr_html_()


def test_notebooks_show_answers_and_audits_in_sentences_and_tables(federation: ffalm.Federation) -> None:
    answer = ffalm.fair(federation, "dpd <= 0.9", algorithms=["fedavg"], rounds=2, model="linear", seed=0)
    page = answer._repr_html_()
    assert "accuracy" in page and "<table" in page and "<b>old" not in page
    audit = ffalm.audit(label=[1, 0] * 40, prediction=[1, 0, 0, 0] * 20, group=["<b>old", "young"] * 40)
    page = audit._repr_html_()
    assert "DPD" in page and page.count("<table") == 2 and "&lt;b&gt;old" in page and "<b>old" not in page


def test_long_tables_are_cut() -> None:
    page = frame_html("many <rows>", pd.DataFrame({"a": range(100)}), ("a note",))
    assert page.count("<tr") == 21
    assert "many &lt;rows&gt;" in page and "... and 80 more" in page and "a note" in page


def test_a_study_is_drawn_as_dots_of_accuracy_against_a_gap(study: ffalm.Study, tmp_path: Path) -> None:
    picture = study.plot("eod")
    assert picture._repr_svg_() == picture.save(tmp_path / "eod.svg").read_text(encoding="utf-8")
    assert "Test accuracy against EOD" in picture.svg
    assert picture.svg.count("<title>") == sum(np.isfinite(run.test["eod"]) for run in study.results)
    with pytest.raises(UserError, match="no test metric 'dp'"):
        study.plot("dp")


def test_a_result_is_drawn_as_metrics_by_round(federation: ffalm.Federation) -> None:
    result = ffalm.simulate("fedavg", federation, rounds=3, model="linear")
    usual = result.plot().svg
    assert all(name in usual for name in ("accuracy", "DPD", "EOD", "Held-out rows by round"))
    legend, line = re.findall(r'<polyline class="curve[^>]*points="([^"]*)"', result.plot("loss").svg)
    assert (len(legend.split()), len(line.split())) == (2, 3)
    with pytest.raises(UserError, match=r"recorded no 'dp': choose from .*dpd"):
        result.plot("dp")


def test_a_federation_is_a_frame_of_its_clients(federation: ffalm.Federation) -> None:
    frame = federation.to_dataframe()
    assert frame.index.tolist() == ["0", "1"] and frame["rows"].tolist() == [60, 60]


def test_a_tally_is_shown_in_a_few_words() -> None:
    assert repr(tally([0, 1, 1], [0, 1, 0], ["a", "b", "b"])) == "Tally(3 rows, 2 labels, 2 groups)"
    assert torch.equal(tally([0, 1], [0, 1], ["b", "a"]).count, tally([0, 1], [0, 1], [1, 0]).count)
