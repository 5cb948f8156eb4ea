"""A site's answers: what it says of its own file, that it splits alone, and that no row leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.federate.makers import Simulated, World, config, people, site_folder

import ffalm
from ffalm.data.encoding import NumericSummary
from ffalm.engines import Snapshot
from ffalm.engines.common import built_model
from ffalm.engines.remote.message import Fact, Message
from ffalm.engines.remote.round_messages import addressed, train_message
from ffalm.errors import NOT_PUBLIC, UserError
from ffalm.federate.coordinator.agreement import agree
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.description import Description
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.site.answering import answer
from ffalm.federate.site.rare_numbers import put_together
from ffalm.federate.site.rows import read_rows
from ffalm.federate.terms import SiteTerms
from ffalm.settings import to_plain

FEATURES = ["age", "hours", "job", "sex"]


def hello(
    folder: Path, plan: FederationConfig, describe: bool = True, columns: list[str] | None = FEATURES
) -> dict[str, Any]:
    facts: dict[str, Fact] = {"describe": describe, "data": json.dumps(to_plain(plan.data))}
    facts |= {"min_group": plan.rules.min_group} | ({} if columns is None else {"columns": json.dumps(columns)})
    return answer("hello", Message(facts=facts), {"site": str(folder)}).facts


def agreed(folder: Path, plan: FederationConfig) -> tuple[SiteTerms, Message]:
    """The terms of a federation of this one site, and what it answers to them."""
    told = Description.from_json(hello(folder, plan)["description"])
    terms = agree(plan, {"north": told})[0].terms("north", plan)
    return terms, answer("agree", Message(facts={"terms": terms.to_text()}), {"site": str(folder)})


def asked(terms: SiteTerms, plan: FederationConfig, round: int = 0) -> Message:
    model = built_model(terms.client_spec(torch.device("cpu"))).state_dict()
    state = plan.algorithm.start(terms.task, torch.ones(1, 2, 2, dtype=torch.int64))
    message = addressed(train_message(Snapshot(round, model, state), plan.algorithm), terms.client)
    return Message(message.tensors, {**message.facts, "terms": terms.key})


def test_a_site_says_names_counts_and_sums_of_its_training_rows_alone(tmp_path: Path) -> None:
    frame = people(100, 1)
    folder = site_folder(tmp_path, "north", frame)
    facts = hello(folder, config())
    assert set(facts) == {"name", "terms", "version", "description"} and facts["name"] == "north"
    told = Description.from_json(facts["description"])
    assert told.labels == ("no", "yes") and told.groups == ("female", "male")
    rows = read_rows(SiteConfig.read(folder / "site.toml"), config().data, folder)
    train = frame.iloc[rows.parts[0]]  # type: ignore[union-attr]
    assert told.columns is not None and len(train) == 70
    sums = put_together(train["age"].to_numpy(float), 2).sum()
    assert told.columns.columns["age"].total == sums  # type: ignore[union-attr]
    assert set(told.columns.columns) == {"age", "hours", "job", "sex"}


@pytest.mark.parametrize(
    ("gaps", "told_count", "told_missing"),
    [(0, 70, 0), (3, 70, 0), (20, 50, 20), (65, 0, 70), (70, 0, 70)],
    ids=["none", "too few to tell", "enough", "too few are left", "all"],
)
def test_missing_numbers_are_counted_where_neither_they_nor_the_others_are_few(
    tmp_path: Path, gaps: int, told_count: int, told_missing: int
) -> None:
    frame, shared = people(100, 1), config(data={"missing": "mean"}).data
    folder = site_folder(tmp_path, "north", frame)
    site = SiteConfig.read(folder / "site.toml")
    train = read_rows(site, shared, folder).parts[0]  # type: ignore[union-attr]
    frame = frame.assign(age=frame["age"].astype(float))
    frame.loc[train[:gaps], "age"] = np.nan
    frame.to_csv(folder / "rows.csv", index=False)
    told = read_rows(site, shared, folder).description(["age"], 10).columns.columns["age"]  # type: ignore[union-attr]
    assert (told.count, told.missing) == (told_count, told_missing)  # type: ignore[union-attr]
    known = frame["age"].iloc[train].dropna().to_numpy()
    expected = put_together(known, 10).mean() * told_count if told_count else 0.0
    assert told.total == pytest.approx(expected)  # type: ignore[union-attr]


def test_beside_missing_numbers_no_value_is_told_that_few_rows_hold(tmp_path: Path) -> None:
    frame, shared = people(100, 1).assign(damages=0.0), config(data={"missing": "mean"}).data
    folder = site_folder(tmp_path, "north", frame)
    site = SiteConfig.read(folder / "site.toml")
    train = read_rows(site, shared, folder).parts[0]  # type: ignore[union-attr]
    frame.loc[train[:20], "damages"], frame.loc[train[20:29], "damages"] = np.nan, 61_234
    frame.to_csv(folder / "rows.csv", index=False)
    told = read_rows(site, shared, folder).description(["damages"], 10).columns.columns  # type: ignore[union-attr]
    assert told["damages"] == NumericSummary(50, 0.0, 0.0, 0.0, 0.0, 20)


def test_a_code_is_the_same_category_at_every_site_whatever_else_its_file_holds(tmp_path: Path) -> None:
    plan = config(data={"categorical": ["job", "sex"]})
    told = {}
    for name, job, sex in (("north", "A1", "x"), ("south", "008", "02")):
        frame = people(100, 1).assign(job=["007", job] * 50, sex=["01", sex] * 50)
        description = hello(site_folder(tmp_path, name, frame), plan)["description"]
        told[name] = Description.from_json(description).columns
    north, south = ([*column.columns["job"].counts] for column in told.values())  # type: ignore[union-attr]
    assert sorted(north) == ["007", "A1"] and sorted(south) == ["007", "008"]
    assert sorted(told["south"].columns["sex"].counts) == ["01", "02"]  # type: ignore[union-attr]


def test_a_site_finds_in_its_log_which_numbers_lose_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = people(100, 1).assign(hours=["007", "104"] * 50)
    told = hello(site_folder(tmp_path, "north", frame), config(), columns=None)
    assert "'hours' holds numbers with zeros before them, such as 007," in caplog.text and "007" not in str(told)
    caplog.clear()
    hello(site_folder(tmp_path, "south", frame), config(data={"categorical": ["hours"]}), columns=None)
    assert "zeros" not in caplog.text


def test_a_file_with_decimal_commas_is_read_where_the_site_says_so(tmp_path: Path) -> None:
    frame = people(100, 1).assign(hours=lambda rows: rows["hours"] + 0.5)
    folder = site_folder(tmp_path, "north", frame)
    frame.to_csv(folder / "rows.csv", index=False, sep=";", decimal=",")
    site = SiteConfig.read(folder / "site.toml")
    with pytest.raises(UserError, match="decimal comma"):
        read_rows(site, config().data, folder).description(["hours"], 2)
    comma = replace(site, data=replace(site.data, decimal=","))  # type: ignore[arg-type]
    told = read_rows(comma, config().data, folder)
    assert told.features["hours"].tolist() == frame["hours"].tolist()  # type: ignore[union-attr]


def test_a_greeting_without_a_description_does_not_read_the_file(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", None)
    assert hello(folder, config(), describe=False) == {"name": "north", "terms": "", "version": ffalm.__version__}


def test_held_out_rows_are_the_same_every_time_and_do_not_depend_on_the_agreement(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(80, 2))
    site = SiteConfig.read(folder / "site.toml")
    one = read_rows(site, config().data, folder)
    other = read_rows(site, config(data={"groups": ["male", "female"], "favourable": "no"}).data, folder)
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(one.parts, other.parts, strict=True))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop(columns="loan"), "Its data file has no column 'loan'."),
        (
            lambda frame: frame.assign(loan=[None, *frame["loan"][1:]]),
            "Its label column 'loan' is empty in some rows.",
        ),
        (
            lambda frame: frame.assign(age=[None, *frame["age"][1:]]),
            "Its numeric column 'age' is empty in some rows: fill them in there, or set missing = ",
        ),
        (
            lambda frame: frame.assign(age=[np.inf, *frame["age"][1:]]),
            "Its numeric column 'age' has missing or infinite values.",
        ),
        (lambda frame: frame.iloc[:2], "It has too few rows to split"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_a_sentence_that_names_no_path(
    tmp_path: Path, change: Any, sentence: str
) -> None:
    folder = site_folder(tmp_path, "north", change(people(60, 3)))
    facts = hello(folder, config())
    assert sentence in facts["misfit"] and "rows.csv" not in facts["misfit"]
    assert facts["name"] == "north"


def test_a_file_outside_the_sites_folder_is_named_in_its_own_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stays = tmp_path / "ward 7" / "stays.csv"
    stays.parent.mkdir()
    stays.touch()
    folder = site_folder(tmp_path, "north", None, file=str(stays))
    assert hello(folder, config())["misfit"] == "Its data file is empty."
    assert f"{str(stays)!r} is empty." in caplog.text
    (folder / "site.toml").write_text("name = ")
    with pytest.raises(UserError, match=NOT_PUBLIC):
        hello(folder, config())
    assert f"{folder / 'site.toml'} is not valid TOML" in caplog.text


def test_the_answer_to_the_terms_is_counts(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1, "min_group": 6})
    _, told = agreed(folder, plan)
    counts = told.tensors["counts"]
    assert int(counts["train"].sum()) == 70
    assert torch.equal(counts["test.withheld"], counts["test"] == 0)
    assert hello(folder, plan, describe=False)["terms"]


def test_rows_are_kept_encoded_and_read_again_only_when_the_file_or_the_terms_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1})
    terms, _ = agreed(folder, plan)
    first = answer("train", asked(terms, plan), {"site": str(folder)})

    def no_reading(*_: Any) -> Any:
        raise AssertionError("the file was read")

    with monkeypatch.context() as patch:
        patch.setattr("ffalm.federate.site.rows.read_rows", no_reading)
        again = answer("train", asked(terms, plan), {"site": str(folder)})
        people(100, 5).to_csv(folder / "rows.csv", index=False)
        with pytest.raises(AssertionError, match="the file was read"):
            answer("train", asked(terms, plan), {"site": str(folder)})
    for name, value in first.tensors["model"].items():
        assert torch.equal(again.tensors["model"][name], value)
    assert len(list((folder / ".cache").iterdir())) == 1


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1})
    terms, _ = agreed(folder, plan)
    first = answer("train", asked(terms, plan), {"site": str(folder)})
    next((folder / ".cache").iterdir()).write_bytes(b"broken")
    again = answer("train", asked(terms, plan), {"site": str(folder)})
    assert torch.equal(first.tensors["model"]["0.weight"], again.tensors["model"]["0.weight"])


def test_a_site_trains_by_no_terms_but_those_it_was_told(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1})
    told = Description.from_json(hello(folder, plan)["description"])
    terms = agree(plan, {"north": told})[0].terms("north", plan)
    with pytest.raises(UserError, match="must agree first"):
        answer("train", asked(terms, plan), {"site": str(folder)})
    with pytest.raises(UserError, match="does not name its site's folder"):
        answer("hello", Message(), {})


def test_a_site_whose_min_group_has_changed_since_it_reported_its_rows_says_both(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1})
    terms, _ = agreed(folder, plan)
    (folder / "site.toml").write_text((folder / "site.toml").read_text().replace("min_group = 0", "min_group = 6"))
    told = "reported its rows under min_group = 0, and min_group is 6 now: it must agree again"
    with pytest.raises(UserError, match=told):
        answer("train", asked(terms, plan), {"site": str(folder)})
    answer("agree", Message(facts={"terms": terms.to_text()}), {"site": str(folder)})
    answer("train", asked(terms, plan), {"site": str(folder)})


def test_training_does_not_import_pandas_once_rows_are_kept(tmp_path: Path) -> None:
    code = "import sys, ffalm.federate.site.answering; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FAVOURABLE = {"name": "fairalm", "labels": "favourable"}


@pytest.mark.parametrize("algorithm", [{"name": "ffalm"}, FAVOURABLE], ids=str)
def test_a_site_may_lack_a_group_and_another_a_label(tmp_path: Path, algorithm: dict[str, str]) -> None:
    only_men = people(70, 1).assign(sex="male")
    only_no = people(70, 2).assign(loan="no")
    folders = {
        name: site_folder(tmp_path / "sites", name, frame)
        for name, frame in {"north": people(90, 0), "south": only_men, "west": only_no}.items()
    }
    plan = config(algorithm=algorithm, training={"rounds": 3})
    outcome = coordinate(plan, tmp_path / "run", World(folders), pause=0.001)
    assert [record["answered"] for record in outcome.history] == [["north", "south", "west"]] * 3
    expected = Simulated(plan, folders, tmp_path / "run").rounds(set())
    assert outcome.history[-1]["dual"] == expected[-1].record["dual"]


@pytest.mark.parametrize("fewest", [0, 10])
@pytest.mark.parametrize("algorithm", [{"name": "ffalm"}, {"name": "fairalm"}, FAVOURABLE], ids=str)
def test_a_site_without_a_group_tells_no_gap_however_small_cells_are_hidden(
    tmp_path: Path, algorithm: dict[str, str], fewest: int
) -> None:
    """Of favourable rows, hidden cells of other labels would stand for those of the group that is not there."""
    frames = {"north": people(300, 0), "south": people(300, 1).assign(sex="male"), "west": people(300, 2)}
    folders = {name: site_folder(tmp_path / "sites", name, frame) for name, frame in frames.items()}
    plan = config(algorithm=algorithm, rules={"min_group": fewest}, training={"rounds": 3})
    outcome = coordinate(plan, tmp_path / "run", World(folders), pause=0.001)
    expected = Simulated(plan, folders, tmp_path / "run").rounds(set())
    assert [record["dual"] for record in outcome.history] == [done.record["dual"] for done in expected]


@pytest.mark.parametrize(("few", "moves"), [("yes", False), ("no", True)])
def test_a_gap_between_favourable_rows_is_told_if_these_are_many_whatever_else_is_hidden(
    tmp_path: Path, few: str, moves: bool
) -> None:
    """A few men are hidden together with the women of the favourable label, who are enough to be compared."""
    frame = people(1000, 1)
    kept = {("male", few): 8, ("female", "yes"): 140}
    parts = [rows[: kept.get(cell, len(rows))] for cell, rows in frame.groupby(["sex", "loan"])]
    folder = site_folder(tmp_path, "north", pd.concat(parts))
    plan = config(algorithm=FAVOURABLE, rules={"min_group": 10})
    terms, told = agreed(folder, plan)
    hidden = told.tensors["counts"]["train.withheld"]
    assert hidden.nonzero().tolist() == ([[1, 0], [1, 1]] if few == "yes" else [[0, 1], [1, 0]])
    state = answer("train", asked(terms, plan), {"site": str(folder)}).tensors["state"]
    assert bool(state["dual"] != 0) == moves


@pytest.mark.parametrize("rare", [0, 3])
def test_gradients_of_disparities_leave_small_groups_out_as_if_the_site_had_none(tmp_path: Path, rare: int) -> None:
    frame = people(100, 1)
    frame["sex"] = ["male" if row % 30 == 0 and row < 30 * rare else "female" for row in range(len(frame))]
    folder = site_folder(tmp_path, "north", frame)
    answers = {}
    for fewest in (1, 5):
        rules, data = {"min_group": fewest}, {"groups": ["female", "male"]}
        plan = config(algorithm={"name": "fcfl"}, rules=rules, data=data)
        terms, _ = agreed(folder, plan)
        answers[fewest] = answer("train", asked(terms, plan), {"site": str(folder)}).tensors
    told = answers[5]
    assert float(told["values"]["values"][0]) > 0
    assert float(told["values"]["values"][1]) == 0
    assert not any(value.any() for value in told["upload.disparity_gradient"].values())
    assert any(value.any() for value in told["upload.loss_gradient"].values())
    assert bool(answers[1]["values"]["values"][1] > 0) == bool(rare)
    assert "tally" not in told


def test_a_table_splits_by_its_own_column(tmp_path: Path) -> None:
    frame = people(60, 1).assign(part=["train"] * 40 + ["val"] * 8 + ["test"] * 12)
    folder = site_folder(tmp_path, "north", frame)
    settings = {"name": "north", "data": {"file": "rows.csv"}, "split": {"column": "part"}}
    SiteConfig.parse(settings).write(folder / "site.toml")
    _, told = agreed(folder, config(("north",), rules={"min_sites": 1}))
    assert [int(told.tensors["counts"][part].sum()) for part in ("train", "validation", "test")] == [40, 8, 12]


# Images


def pictures(root: Path, name: str, seed: int, count: int = 40, **data: Any) -> Path:
    """A site of small pictures, brighter where the label is 1."""
    folder, draw = root / name, np.random.default_rng(seed)
    (folder / "pictures").mkdir(parents=True)
    label, group = draw.integers(0, 2, count), draw.choice(["a", "b"], count)
    for number in range(count):
        pixels = draw.integers(0, 120, (10, 10, 3)) + 100 * label[number]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "pictures" / f"{number}.png")
    files = [f"{number}.png" for number in range(count)]
    pd.DataFrame({"file": files, "loan": label, "sex": group}).to_csv(folder / "labels.csv", index=False)
    settings = {"source": "images", "folder": "pictures", "labels": "labels.csv", **data}
    SiteConfig.parse({"name": name, "device": "cpu", "data": settings}).write(folder / "site.toml")
    return folder


def test_sites_of_images_train_together_and_equal_the_simulation(tmp_path: Path) -> None:
    folders = {name: pictures(tmp_path / "sites", name, seed) for seed, name in enumerate(("north", "south"))}
    data = {"source": "images", "size": 8, "favourable": 1}
    plan = config(("north", "south"), data=data, model={"name": "linear"}, training={"rounds": 2})
    outcome = coordinate(plan, tmp_path / "run", World(folders), pause=0.001)
    expected = Simulated(plan, folders, tmp_path / "run").rounds(set())
    assert [record["train_loss"] for record in outcome.history] == [done.record["train_loss"] for done in expected]


def test_a_site_whose_pictures_were_made_for_another_size_is_a_misfit(tmp_path: Path) -> None:
    folders = {name: pictures(tmp_path / "sites", name, seed) for seed, name in enumerate(("north", "south"))}
    folders["west"] = pictures(tmp_path / "sites", "west", 3, size=16)
    data = {"source": "images", "size": 8, "favourable": 1}
    plan = config(data=data, model={"name": "linear"}, training={"rounds": 1})
    sites = World(folders)
    coordinate(plan, tmp_path / "run", sites, pause=0.001)
    assert sites.told["west"] == "The site 'west' has images of 16 pixels, the federation uses 8."


def test_a_site_that_comes_to_insist_on_secure_sums_answers_nothing_in_clear(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(100, 4))
    plan = config(("north",), rules={"min_sites": 1})
    terms, _ = agreed(folder, plan)
    question = asked(terms, plan)
    toml = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(toml.replace("secure = false", "secure = true"))
    for kind in ("train", "score"):
        with pytest.raises(UserError, match="secure sums only"):
            answer(kind, question, {"site": str(folder)})


def test_the_coordinators_run_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    sites = World({"north": site_folder(tmp_path, "north", people(100, 4))})
    coordinate(config(("north",), rules={"min_sites": 1}, training={"rounds": 1}), tmp_path / "run", sites, pause=0.001)
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


def test_a_site_answers_each_question_of_a_run_once_and_the_same_question_again(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(60, 4))
    plan = config(("north",), rules={"min_sites": 1}, training={"rounds": 2})
    terms, _ = agreed(folder, plan)
    question = asked(terms, plan)
    first, again = (answer("train", question, {"site": str(folder)}) for _ in range(2))
    assert torch.equal(first.tensors["model"]["0.weight"], again.tensors["model"]["0.weight"])
    model = {name: value + 1e-3 for name, value in question.tensors["model"].items()}
    other = replace(question, tensors={**question.tensors, "model": model})
    for kind, named in (("train", "train 1"), ("score", "score")):
        answer(kind, question, {"site": str(folder)})  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"answered the question '{named}' of this run for another model"):
            answer(kind, other, {"site": str(folder)})  # type: ignore[arg-type]
    answer("train", replace(other, facts={**other.facts, "round": 1}), {"site": str(folder)})
    new = replace(terms, run="another/../run")
    answer("agree", Message(facts={"terms": new.to_text()}), {"site": str(folder)})
    answer("train", replace(other, facts={**other.facts, "terms": new.key}), {"site": str(folder)})
    assert len({file.name for file in (folder / ".answered").iterdir()} - {"described.json"}) == 2


def test_other_terms_under_the_same_run_are_another_question(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(60, 4))
    plan = config(("north",), rules={"min_sites": 1})
    terms = replace(agreed(folder, plan)[0], run="a run")
    answer("agree", Message(facts={"terms": terms.to_text()}), {"site": str(folder)})
    question = asked(terms, plan)
    answer("train", question, {"site": str(folder)})
    longer = replace(terms, training=replace(terms.training, rounds=9))
    steeper = replace(terms, training=replace(terms.training, lr=0.9))
    for new, refused in ((longer, False), (steeper, True)):
        answer("agree", Message(facts={"terms": new.to_text()}), {"site": str(folder)})
        again = replace(question, facts={**question.facts, "terms": new.key})
        if refused:
            with pytest.raises(UserError, match="or other terms"):
                answer("train", again, {"site": str(folder)})
        else:
            answer("train", again, {"site": str(folder)})
