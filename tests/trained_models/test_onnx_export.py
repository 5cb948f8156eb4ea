"""Models written as ONNX predict what they predict here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.trained_models.test_trained_model import people
from torch import nn

import ffalm
from ffalm.data.decode import Recipe
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.types import Task
from ffalm.errors import UserError
from ffalm.fairness.histograms import AS_TRAINED, BINS
from ffalm.models import CNN, MLP, Architecture, Linear, ResNet18
from ffalm.targets.repair import Repair
from ffalm.trained_models.model_description import ModelDescription
from ffalm.trained_models.trained_model import TrainedModel

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def computed(file: Path, inputs: dict[str, Any]) -> tuple[list[str], Any]:
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label", "probabilities"], inputs)
    return label.tolist(), probabilities


def columns(frame: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    """Each column as an input of the graph."""
    made = {}
    for name in names:
        numeric = pd.api.types.is_numeric_dtype(frame[name])
        values = frame[name].to_numpy(dtype=np.float64) if numeric else frame[name].fillna("").to_numpy(dtype=object)
        made[name] = values.reshape(-1, 1)
    return made


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    federation = ffalm.load(people(), label="paid", group="sex", favourable="yes", clients=2)
    return ffalm.simulate("fedavg", federation, rounds=3, lr=0.5).model


def with_edges(model: TrainedModel, *edges: int) -> TrainedModel:
    return replace(model, repair=Repair.fixed("groups", edges, AS_TRAINED + 5))


def test_a_table_is_encoded_within_the_graph(model: TrainedModel, tmp_path: Path) -> None:
    frame = people(200, 1)
    frame.loc[3, "job"] = "baker"  # not seen in training
    label, probabilities = computed(model.to_onnx(tmp_path / "m.onnx"), columns(frame, ["sex", "income", "job"]))
    assert np.allclose(probabilities, model.predict_proba(frame), atol=1e-6)
    assert label == model.predict(frame).tolist()


def test_thresholds_by_group_are_within_the_graph(model: TrainedModel, tmp_path: Path) -> None:
    own, frame = with_edges(model, AS_TRAINED - 9, BINS), people(200, 1)
    file = own.to_onnx(tmp_path / "m.onnx")
    inputs = columns(frame, ["sex", "income", "job"])
    label, _ = computed(file, {**inputs, "group": inputs["sex"]})
    assert label == own.predict(frame, group="sex").tolist() != model.predict(frame).tolist()
    nobody = np.full((200, 1), "", dtype=object)
    assert computed(file, {**inputs, "group": nobody})[0] == own.predict(frame).tolist()


def test_columns_may_have_the_names_of_other_inputs_and_outputs(tmp_path: Path) -> None:
    renamed = {"sex": "group", "income": "label", "job": "probabilities"}
    frame = people(200).rename(columns=renamed).assign(constant_0=1.5)
    federation = ffalm.load(frame, label="paid", group="group", favourable="yes", clients=2)
    trained = ffalm.simulate("fedavg", federation, rounds=1, model="linear").model
    own = with_edges(trained, AS_TRAINED - 9, AS_TRAINED + 9)
    inputs = columns(frame, ["group", "label", "probabilities", "constant_0"])
    session = runtime.InferenceSession(own.to_onnx(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label_", "probabilities_"], {**inputs, "group_": inputs["group"]})
    assert label.tolist() == own.predict(frame, group="group").tolist()
    assert np.allclose(probabilities, own.predict_proba(frame), atol=1e-6)


def test_a_column_that_was_constant_in_training_never_makes_a_probability_undefined(tmp_path: Path) -> None:
    frame = people(200).assign(country=1.5)
    federation = ffalm.load(frame, label="paid", group="sex", favourable="yes", clients=2)
    model = ffalm.simulate("fedavg", federation, rounds=1, model="linear").model
    file, names = model.to_onnx(tmp_path / "m.onnx"), ["sex", "income", "job", "country"]
    for value in (1.5, 7.0, np.nan, np.inf):
        _, found = computed(file, columns(frame.assign(country=value), names))
        assert np.allclose(found, model.predict_proba(frame), atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_row_that_predict_refuses_gets_no_label(value: float, hidden: bool, tmp_path: Path) -> None:
    architecture = MLP(hidden=(4,)) if hidden else Linear()  # in ONNX a ReLU may turn NaN into 0
    federation = ffalm.load(people(), label="paid", group="sex", favourable="yes", clients=2)
    model = ffalm.simulate("fedavg", federation, model=architecture, rounds=1).model
    frame = people(20, 1)
    whole, _ = computed(model.to_onnx(tmp_path / "m.onnx"), columns(frame, ["sex", "income", "job"]))
    frame.loc[3, "income"] = value
    for one in (model, with_edges(model, AS_TRAINED, AS_TRAINED + 9)):
        inputs = columns(frame, ["sex", "income", "job"])
        if one.by_group:
            inputs["group"] = inputs["sex"]
        label, probabilities = computed(one.to_onnx(tmp_path / f"{one.by_group}.onnx"), inputs)
        assert label[3] == "" and "" not in label[:3] + label[4:]
        assert np.isnan(probabilities[3]).all() and np.isfinite(np.delete(probabilities, 3, axis=0)).all()
        if not one.by_group:
            assert label[:3] + label[4:] == whole[:3] + whole[4:]
    with pytest.raises(UserError, match="missing or infinite value"):
        model.predict(frame)


def test_one_threshold_needs_no_group(model: TrainedModel, tmp_path: Path) -> None:
    own, frame = with_edges(model, AS_TRAINED + 5, AS_TRAINED + 5), people(100, 1)
    label, _ = computed(own.to_onnx(tmp_path / "m.onnx"), columns(frame, ["sex", "income", "job"]))
    assert label == own.predict(frame).tolist()


@pytest.mark.parametrize("power", [1, 12], ids=["", "with a long tail"])
def test_missing_numbers_are_filled_as_in_training(tmp_path: Path, power: int) -> None:
    frame = people(300)
    frame["income"] = frame["income"].abs() ** power
    frame.loc[::9, "income"] = np.nan
    settings: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": "yes", "missing": "mean", "clients": 2}
    model = ffalm.simulate("fedavg", ffalm.load(frame, **settings), rounds=1, model="linear").model
    assert model.description.preprocessing is not None and model.description.preprocessing.table is not None
    assert ("root" in model.description.preprocessing.table.to_json()) == (power > 1)
    _, found = computed(model.to_onnx(tmp_path / "m.onnx"), columns(frame, ["sex", "income", "job"]))
    assert np.allclose(found, model.predict_proba(frame), atol=1e-6)


@pytest.mark.parametrize("architecture", [CNN((4, 8)), ResNet18(), ResNet18("fairalm"), Linear()])
def test_images_are_given_as_bytes(architecture: Architecture, tmp_path: Path) -> None:
    size = 65 if architecture == ResNet18("fairalm") else 32
    task = Task("pictures", label_names=("old", "middle", "young"), favourable=2)
    torch.manual_seed(0)
    module = architecture.build((3, size, size), 3).eval()
    description = ModelDescription(task, (3, size, size), {}, Preprocessing(images=Recipe(size)), "uint8")
    model = TrainedModel(module, description, Repair.fixed("single", [AS_TRAINED - 3] * 2, AS_TRAINED - 3))
    pixels = torch.randint(0, 256, (5, 3, size, size), dtype=torch.uint8)
    label, probabilities = computed(model.to_onnx(tmp_path / "m.onnx"), {"features": pixels.numpy()})
    assert np.allclose(probabilities, model.predict_proba(pixels), atol=1e-5)
    assert label == model.predict(pixels).tolist()


def test_what_cannot_be_written_is_told(model: TrainedModel, tmp_path: Path) -> None:
    mixed = Repair("randomised", (((0, 0.5), (BINS, 0.5)),) * 2, AS_TRAINED)
    with pytest.raises(UserError, match="Randomised thresholds"):
        replace(model, repair=mixed).to_onnx(tmp_path / "m.onnx")
    odd = nn.Sequential(nn.Linear(6, 2), nn.Softplus())
    with pytest.raises(UserError, match="the layer Softplus is not known"):
        replace(model, module=odd).to_onnx(tmp_path / "m.onnx")
