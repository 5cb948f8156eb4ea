"""The model of a federation, applied to rows that came later by the encoding that was saved with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.federate.makers import Simulated, World, config, people, world
from tests.federate.site.test_answering import pictures

from ffalm import TrainedModel, load_model
from ffalm.data.encoding import NumericColumn
from ffalm.errors import UserError
from ffalm.fairness.histograms import AS_TRAINED, BINS
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import SiteConfig
from ffalm.federate.site.rows import read_rows
from ffalm.targets.repair import Repair
from ffalm.targets.target import Kind


def test_predictions_are_those_that_the_sites_scored(tmp_path: Path) -> None:
    plan, sites = config(training={"rounds": 2}), world(tmp_path)
    coordinate(plan, tmp_path / "run", sites, pause=0.001)
    trained = load_model(tmp_path)  # the federation folder will do
    part = Simulated(plan, sites.folders, tmp_path / "run").parts[0]["test"]
    folder = sites.folders["north"]
    rows = read_rows(SiteConfig.read(folder / "site.toml"), plan.data, folder).parts[2]  # type: ignore[union-attr]
    frame = people(90, 0).iloc[rows]
    chances = torch.from_numpy(trained.predict_proba(frame)).float()
    assert torch.allclose(chances, trained.module(part.x).softmax(-1), atol=1e-6)
    assert set(trained.predict(frame).tolist()) <= {"no", "yes"}


def test_missing_numbers_are_the_mean_of_all_sites_in_training_and_in_prediction(tmp_path: Path) -> None:
    plan, sites = config(training={"rounds": 2}, data={"missing": "mean"}), world(tmp_path)
    for site, share in (("north", 0.3), ("west", 1.0)):
        frame = pd.read_csv(sites.folders[site] / "rows.csv")
        gaps = np.random.default_rng(0).random(len(frame)) < share
        frame.assign(hours=frame["hours"].mask(gaps)).to_csv(sites.folders[site] / "rows.csv", index=False)
    coordinate(plan, tmp_path / "run", sites, pause=0.001)
    simulated = Simulated(plan, sites.folders, tmp_path / "run")
    assert set(simulated.parts[2]["train"].x[:, 1].tolist()) == {0.0}
    trained, new = load_model(tmp_path), people(20, 5)
    encoding = simulated.agreement.encoding
    assert encoding is not None
    mean = next(
        column.mean for column in encoding.columns if isinstance(column, NumericColumn) and column.name == "hours"
    )
    empty, filled = new.assign(hours=np.nan), new.assign(hours=mean)
    assert np.array_equal(trained.predict_proba(empty), trained.predict_proba(filled))


def test_a_file_is_predicted_too_though_it_has_no_label_and_new_categories(tmp_path: Path) -> None:
    coordinate(config(training={"rounds": 1}), tmp_path / "run", world(tmp_path), pause=0.001)
    people(12, 5).drop(columns="loan").assign(job="baker").to_csv(tmp_path / "new.csv", index=False)
    trained = load_model(tmp_path / "run")
    assert len(trained.predict(tmp_path / "new.csv")) == 12
    with pytest.raises(UserError, match="lacks the column 'age'"):
        trained.predict(people(12, 5).drop(columns="age"))
    with pytest.raises(UserError, match="takes a table"):
        trained.predict(["a.png"])


def with_thresholds(tmp_path: Path, kind: Kind = "groups") -> TrainedModel:
    """A model with a threshold of its own for females and for all others."""
    coordinate(config(training={"rounds": 1}), tmp_path / "run", world(tmp_path), pause=0.001)
    half = ((0, 0.5), (BINS, 0.5))
    edges = (half if kind == "randomised" else ((0, 1.0),), ((BINS, 1.0),))
    repair = Repair(kind, edges, single=AS_TRAINED)
    (tmp_path / "run" / "repair.json").write_text(json.dumps(repair.to_plain(("female", "male"))))
    return load_model(tmp_path)


def test_thresholds_by_group_are_applied_to_rows_whose_group_is_known(tmp_path: Path) -> None:
    trained, frame = with_thresholds(tmp_path), people(40, 5)
    likely = [trained.task.label_names[place] for place in trained.predict_proba(frame).argmax(-1).tolist()]
    assert trained.predict(frame).tolist() == likely  # the single threshold
    assert trained.predict(frame, group="sex").tolist() == ["yes" if sex == "female" else "no" for sex in frame["sex"]]
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert trained.predict(tmp_path / "new.csv", group="sex").tolist() == trained.predict(frame, group="sex").tolist()
    partly = ["Female", None, float("nan"), "other", *["male"] * 36]  # spelling apart, groups are those agreed
    assert trained.predict(frame, group=partly).tolist() == ["yes", *likely[1:4], *["no"] * 36]


def test_a_row_gets_the_same_randomised_answer_in_whatever_company(tmp_path: Path) -> None:
    trained, frame = with_thresholds(tmp_path, "randomised"), people(200, 5)
    answers = trained.predict(frame, group=["female"] * 200).tolist()
    assert 60 < answers.count("yes") < 140
    assert trained.predict(frame[::-1], group=["female"] * 200).tolist() == answers[::-1]
    alike = trained.predict(frame.iloc[[0] * 200], group=["female"] * 200).tolist()  # rows of the same features
    assert 60 < alike.count("yes") < 140 and alike[0] == answers[0]


def test_groups_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    trained = with_thresholds(tmp_path)
    with pytest.raises(UserError, match="there are 3 for 12 rows"):
        trained.predict(people(12, 5), group=["male"] * 3)
    with pytest.raises(UserError, match="did you mean 'sex'"):
        trained.predict(people(12, 5), group="sexe")
    with pytest.raises(UserError, match="no thresholds by group"):
        replace(trained, repair=None).predict(people(12, 5), group="sex")
    (tmp_path / "run" / "repair.json").write_text("{}")
    with pytest.raises(UserError, match="thresholds cannot be read"):
        load_model(tmp_path)


def test_images_are_predicted_by_the_agreed_size(tmp_path: Path) -> None:
    folders = {name: pictures(tmp_path / "sites", name, seed) for seed, name in enumerate(("north", "south"))}
    data = {"source": "images", "size": 8, "favourable": 1}
    plan = config(("north", "south"), data=data, model={"name": "linear"}, training={"rounds": 12})
    coordinate(plan, tmp_path / "run", World(folders), pause=0.001)
    trained = load_model(tmp_path)
    files = []
    for name, level in (("dark", 30), ("bright", 190)):
        files.append(tmp_path / f"{name}.png")
        Image.fromarray(np.full((20, 20, 3), level, dtype=np.uint8)).save(files[-1])
    assert trained.predict(files).tolist() == ["0", "1"]
    with pytest.raises(UserError, match="takes images"):
        trained.predict(people(3, 1))
    (tmp_path / "none.png").write_text("no picture")
    with pytest.raises(UserError, match=r"none.png cannot be used"):
        trained.predict([tmp_path / "none.png"])


def test_what_is_not_there_yet_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"encoding.json is missing"):
        load_model(tmp_path)
    coordinate(config(training={"rounds": 1}), tmp_path / "run", world(tmp_path), pause=0.001)
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors of a finished run is missing or damaged"):
        load_model(tmp_path)


def test_columns_are_crossed_as_the_federation_crosses_them(tmp_path: Path) -> None:
    trained, frame = with_thresholds(tmp_path), people(40, 5)
    names = ("female, nurse", "male, nurse", "other")
    task = replace(trained.task, group="sex, job", group_names=names, excluded=1)
    edges = (((0, 1.0),), ((BINS, 1.0),), ((AS_TRAINED, 1.0),))
    description = replace(trained.description, task=task)
    crossed = replace(trained, description=description, repair=Repair("groups", edges, AS_TRAINED))
    usual = crossed.predict(frame).tolist()
    expected = [
        {"female": "yes", "male": "no"}[sex] if job == "nurse" else own
        for sex, job, own in zip(frame["sex"], frame["job"], usual, strict=True)
    ]
    assert crossed.predict(frame, group="sex, job").tolist() == expected
