"""`ffalm repair`: a file of scores becomes thresholds, predictions and a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest
from tests.cli.conftest import Cli

COLUMNS = ["--label", "paid", "--score", "p", "--group", "sex", "--favourable", "yes"]
RANDOMISED = ["--target", "equalized_odds <= 0.01", "--repair", "randomised", "--confidence", 0.5]


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    sex = draws.integers(0, 2, 1200)
    p = 1 / (1 + np.exp(-draws.normal(sex - 0.5, 1.5)))
    table = pd.DataFrame(
        {
            "person": np.arange(1200),
            "p": p,
            "sex": np.where(sex, "m", "f"),
            "paid": np.where(draws.random(1200) < np.where(sex, p, 0.25 + p / 2), "yes", "no"),
        }
    )
    table.to_csv(tmp_path / "scores.csv", index=False)
    table.to_parquet(tmp_path / "scores.parquet")
    return tmp_path / "scores.csv"


def test_a_file_that_cannot_be_used_is_named_once_in_quotation_marks(cli: Cli, scores: Path) -> None:
    table = pd.read_csv(scores)
    table.assign(paid=table["paid"].where(table.index > 3)).to_csv(scores, index=False)
    assert f"'paid' of '{scores}' is empty in 4 of 1200 rows" in cli("repair", scores, *COLUMNS)[2]
    tiny = table.assign(p=table["p"].where(table.index > 0, 3.4e-5))
    tiny.to_csv(scores, index=False, sep=";", decimal=",")
    assert "set decimal to ',' (--decimal ,)" in cli("repair", scores, *COLUMNS)[2]


def test_scores_with_decimal_commas_in_another_encoding_are_repaired_alike(
    cli: Cli, scores: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    pd.read_csv(scores).replace({"sex": {"m": "mä"}}).to_csv(
        other, index=False, sep=";", decimal=",", encoding="latin-1"
    )
    code, shown, _ = cli("repair", other, *COLUMNS, "--decimal", ",", "--encoding", "latin-1", "--json")
    assert code == 0
    assert json.loads(shown)["test"] == json.loads(cli("repair", scores, *COLUMNS, "--json")[1])["test"]


def test_thresholds_tables_and_predictions_are_written(cli: Cli, scores: Path, tmp_path: Path) -> None:
    out = tmp_path / "repaired"
    code, shown, _ = cli("repair", scores, *COLUMNS, "--test-share", 0.5, "--out", out)
    assert code == 0
    for said in ("Who pays", "Kinds of thresholds", "one threshold", "on 600 test rows", "taken as probabilities"):
        assert said in shown, said
    assert "--repair single answers without it" in " ".join(shown.split()) and "blind" not in shown
    told = json.loads((out / "repair.json").read_text())
    predictions = pd.read_csv(out / "predictions.csv")
    assert list(predictions) == ["part", "row", "score", "group", "prediction"]
    truth = pd.read_csv(scores)["paid"].to_numpy()[predictions["row"] - 1]
    test = predictions["part"] == "test"
    assert (predictions["prediction"] == truth)[test].mean() == pytest.approx(told["test"]["accuracy"], abs=1e-12)
    thresholds = {name: mix[0]["threshold"] for name, mix in told["thresholds"]["groups"].items()}
    own = predictions["group"].map(thresholds)
    assert ((predictions["score"] >= own) == (predictions["prediction"] == "yes")).all()


def test_parquet_and_a_test_file_are_read_and_json_is_printed(cli: Cli, scores: Path) -> None:
    code, shown, _ = cli("repair", scores.with_suffix(".parquet"), *COLUMNS, "--test", scores, "--json")
    told = json.loads(shown)
    assert code == 0 and told["judged_on"] == "test"
    assert told["test"]["dpd"] == told["calibration"]["dpd"]  # the same rows


def test_messages_name_the_columns_of_the_file(cli: Cli, scores: Path) -> None:
    table = pd.read_csv(scores).rename(columns={"p": "punkte", "paid": "zahlt"})
    columns = ["--label", "zahlt", "--score", "punkte", "--group", "sex", "--favourable", "yes"]
    for wrong, said in ((table.assign(zahlt="yes"), "label column 'zahlt'"), (table.assign(punkte="x"), "'punkte'")):
        wrong.to_csv(scores, index=False)
        code, _, err = cli("repair", scores, *columns)
        assert code == 2 and said in err, err


def test_group_columns_are_crossed(cli: Cli, scores: Path) -> None:
    table = pd.read_csv(scores)
    table.assign(age=np.where(table["person"] % 3, "old", "young")).to_csv(scores, index=False)
    code, shown, _ = cli("repair", scores, *COLUMNS, "--group", "sex,age", "--json")
    assert code == 0 and list(json.loads(shown)["thresholds"]["groups"]) == ["f, old", "f, young", "m, old", "m, young"]


def test_randomised_predictions_are_the_same_for_the_same_id(cli: Cli, scores: Path, tmp_path: Path) -> None:
    asked = ["--target", "equalized_odds <= 0.01", "--repair", "randomised", "--confidence", 0.5, "--id", "person"]
    found = []
    shuffled = tmp_path / "shuffled.csv"
    pd.read_csv(scores).sample(frac=1, random_state=1).to_csv(shuffled, index=False)
    for name, file in (("a", scores), ("b", shuffled)):
        assert cli("repair", file, *COLUMNS, *asked, "--out", tmp_path / name)[0] == 0
        found.append(pd.read_csv(tmp_path / name / "predictions.csv").set_index("id")["prediction"].sort_index())
    assert json.loads((tmp_path / "a" / "repair.json").read_text())["thresholds"]["kind"] == "randomised"
    assert found[0].equals(found[1])
    assert cli("repair", scores, *COLUMNS, *asked[:-2], "--out", tmp_path / "c")[0] == 0  # by the row's content


def test_equal_rows_of_a_file_without_ids_are_drawn_one_by_one(cli: Cli, scores: Path, tmp_path: Path) -> None:
    table = pd.read_csv(scores)[["p", "sex", "paid"]]
    table.assign(p=table["p"].round(1), note=["", "text"] * 600).to_csv(scores, index=False)  # half of it is missing
    asked = ["--target", "equalized_odds <= 0.01", "--repair", "randomised", "--confidence", 0.5]
    for name in ("a", "b"):
        assert cli("repair", scores, *COLUMNS, *asked, "--out", tmp_path / name)[0] == 0
    text = (tmp_path / "a" / "predictions.csv").read_text()
    assert text == (tmp_path / "b" / "predictions.csv").read_text()
    mixes = json.loads((tmp_path / "a" / "repair.json").read_text())["thresholds"]["groups"]
    drawn = pd.read_csv(tmp_path / "a" / "predictions.csv").assign(yes=lambda rows: rows["prediction"] == "yes")
    for (group, score), rows in drawn.groupby(["group", "score"]):
        chance = sum(one["probability"] for one in mixes[group] if score >= float(one["threshold"]))
        assert rows["yes"].mean() == pytest.approx(chance, abs=4 * (chance * (1 - chance) / len(rows)) ** 0.5 + 1e-9)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--score", "q"], "has no column 'q'"),
        (["--target", "dpd"], "is not understood"),
        (["--repair", "none"], "There is no repair 'none'"),
        (["--test", "x.csv", "--test-share", "0.5"], "exclude each other"),
        (["--favourable", "maybe"], "has no value 'maybe'"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(cli: Cli, scores: Path, extra: list[str], message: str) -> None:
    code, _, err = cli("repair", scores, *COLUMNS, *extra)
    assert code == 2 and message in err and len(err.splitlines()) == 1


def test_thresholds_are_not_judged_on_the_rows_that_they_were_fitted_to(cli: Cli, scores: Path, tmp_path: Path) -> None:
    (tmp_path / "again.csv").symlink_to(scores)
    code, _, said = cli("repair", scores, *COLUMNS, "--test", tmp_path / "again.csv")
    assert (code, "must name other rows" in said) == (2, True)


def test_printed_thresholds_decide_as_the_files_do(cli: Cli, scores: Path, tmp_path: Path) -> None:
    """Leaves of a tree give many rows the same score: rounded up, a threshold would leave all of them out."""
    table = pd.read_csv(scores)
    leaves = (np.round(table["p"] * 13) / 13).clip(1 / 13, 12 / 13)
    table.assign(p=leaves).to_csv(scores, index=False)
    code, shown, _ = cli("repair", scores, *COLUMNS, "--target", "dpd <= 0.1", "--out", tmp_path / "repaired")
    assert code == 0
    lines = [line.split() for line in shown[shown.index("Thresholds\n\n Group") :].splitlines()]
    printed = {line[0]: float(line[1]) for line in lines if line[:1] in (["f"], ["m"])}
    written = pd.read_csv(tmp_path / "repaired" / "predictions.csv")
    decided = np.where(written["score"] >= written["group"].map(printed), "yes", "no")
    assert decided.tolist() == written["prediction"].tolist()


def test_ids_are_read_as_they_are_written(cli: Cli, scores: Path, tmp_path: Path) -> None:
    """As numbers, 007 was 7, long ids beside an empty cell were rounded, and draws depended on the file's other ids."""
    table, long = pd.read_csv(scores), 2**53
    for name, ids in (
        ("padded", [f"{one:05d}" for one in range(1200)]),
        ("beside a text", [*(f"{one:05d}" for one in range(1199)), "x"]),
        ("long", [str(long + one) for one in range(1200)]),
        ("long fractions", [f"{long + one}.0" for one in range(1200)]),
    ):
        table.assign(person=ids).to_csv(tmp_path / "ids.csv", index=False)
        code, *_ = cli(
            "repair", tmp_path / "ids.csv", *COLUMNS, *RANDOMISED, "--id", "person", "--out", tmp_path / name
        )
        assert code == 0 and [*_predictions(tmp_path / name)["id"]] == ids
    for one, other in (("padded", "beside a text"), ("long", "long fractions")):
        drawn = [_predictions(tmp_path / name)["prediction"][:-1] for name in (one, other)]
        assert drawn[0].equals(drawn[1])


def _predictions(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "predictions.csv", dtype=str)


def test_a_row_without_an_id_gets_no_draw(cli: Cli, scores: Path, tmp_path: Path) -> None:
    table = pd.read_csv(scores)
    table["person"] = table["person"].where(table["person"] > 2)
    table.to_csv(scores, index=False)
    code, _, told = cli("repair", scores, *COLUMNS, *RANDOMISED, "--id", "person", "--out", tmp_path / "out")
    assert code == 2 and "3 of 1200 rows have no id" in told


def test_a_label_is_found_in_any_unicode_form_where_draws_depend_on_the_other_columns(
    cli: Cli, scores: Path, tmp_path: Path
) -> None:
    pd.read_csv(scores).rename(columns={"paid": "payé"}).to_csv(scores, index=False)
    asked = ["--label", normalize("NFD", "payé"), *COLUMNS[2:], *RANDOMISED]
    assert cli("repair", scores, *asked, "--out", tmp_path / "out")[0] == 0


def test_groups_of_codes_are_kept_apart_where_their_column_is_named_in_another_unicode_form(
    cli: Cli, scores: Path, tmp_path: Path
) -> None:
    table = pd.read_csv(scores).rename(columns={"sex": "größe"})
    table.replace({"größe": {"f": "01", "m": "1"}}).to_csv(scores, index=False)
    asked = ["--label", "paid", "--score", "p", "--group", normalize("NFD", "größe"), "--favourable", "yes"]
    assert list(json.loads(cli("repair", scores, *asked, "--json")[1])["thresholds"]["groups"]) == ["01", "1"]
