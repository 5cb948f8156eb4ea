"""`ffalm predict` on the command line."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tests.trained_models.test_trained_model import answer_of_frames, people

import ffalm
from ffalm.cli import run
from ffalm.data.decode import Recipe
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.types import Task
from ffalm.fairness.histograms import AS_TRAINED, BINS
from ffalm.models import CNN
from ffalm.targets.repair import Repair
from ffalm.trained_models.model_description import ModelDescription
from ffalm.trained_models.trained_model import TrainedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with thresholds by group."""
    federation = ffalm.load(people(), label="paid", group="sex", favourable="yes", clients=2)
    answer = ffalm.fair(federation, "dpd <= 0.02", algorithms=["fedavg"], rounds=3, lr=0.5)
    assert answer.chosen.kind == "groups"
    return answer.save(tmp_path_factory.mktemp("models") / "fair")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    people(30, 1).drop(columns="paid").assign(job="baker").to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_predictions_are_written_as_csv(model: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", str(model), str(new), "--group", "sex", "--out", str(new.with_name("out.csv"))]) == 0
    told = capsys.readouterr()
    assert "30 of 30 rows have a value of 'job' that no training row had" in told.err
    written = pd.read_csv(new.with_name("out.csv"))
    assert list(written) == ["row", "prediction", "probability"]
    assert written["prediction"].tolist() == ffalm.load_model(model).predict(new, group="sex").tolist()


def test_named_columns_are_copied_as_they_are_written(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(new).assign(id=[f"{number:03d}" for number in range(30)])
    frame.to_csv(new, index=False)
    assert run(["predict", str(model), str(new), "--group", "sex", "--copy", "id,sex"]) == 0
    shown = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str)
    assert list(shown) == ["row", "id", "sex", "prediction", "probability"]
    assert shown["id"].tolist() == frame["id"].tolist() and shown["id"][7] == "007"
    assert shown["sex"].tolist() == frame["sex"].tolist()
    frame.assign(prediction="old").to_csv(new, index=False)
    assert run(["predict", str(model), str(new), "--copy", "id,prediction"]) == 2
    assert "cannot take 'prediction'" in capsys.readouterr().err
    assert run(["predict", str(model), str(new), "--copy", "idd"]) == 2
    assert "idd" in capsys.readouterr().err


def test_new_numbers_that_are_written_like_thousands_are_noted(
    tmp_path: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pay = np.random.default_rng(0).integers(200, 9000, 400)
    federation = ffalm.load(people(400).assign(pay=pay), label="paid", group="sex", favourable="yes", clients=2)
    answer = ffalm.fair(federation, "dpd <= 0.5", algorithms=["fedavg"], rounds=1, lr=0.5, repair="none")
    model, frame = str(answer.save(tmp_path / "fair")), pd.read_csv(new)

    def told(amounts: list[int], mark: str) -> str:
        texts = [f"{amount:,}".replace(",", mark) for amount in amounts]
        frame.assign(pay=texts).to_csv(new, index=False, sep=";")
        assert run(["predict", model, str(new)]) == 0
        return capsys.readouterr().err

    wide = [200, *pay[pay > 1000][:29]]
    assert "'pay' holds numbers with a point before three digits" in (note := told(wide, "."))
    assert f"such as 200: if these are thousands, write them without it ({wide[1]})" in note
    assert "much closer than in training" in told([amount + 1000 for amount in wide], ".")
    assert "'pay'" not in told(wide, "")


def test_a_file_may_be_written_in_another_way_than_that_of_training(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def predicted(*more: str) -> str:
        assert run(["predict", str(model), str(new), "--group", "sex", "--copy", "note", *more]) == 0
        return capsys.readouterr().out

    frame = pd.read_csv(new).assign(note="ä")
    numbers = list(frame.select_dtypes("number"))
    frame[numbers] += 0.25
    frame.to_csv(new, index=False)
    usual = predicted()
    frame.to_csv(new, index=False, sep="|", decimal=",", encoding="latin-1")
    assert predicted("--separator", "|", "--decimal", ",", "--encoding", "latin-1") == usual


def test_without_the_group_the_single_threshold_is_used_and_told(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", str(model), str(new), "--proba"]) == 0
    told = capsys.readouterr()
    assert "no --group was given: all rows get the single threshold" in told.err
    shown = pd.read_csv(io.StringIO(told.out))
    assert list(shown)[-2:] == ["probability of no", "probability of yes"]
    assert shown["prediction"].tolist() == ffalm.load_model(model).predict(new).tolist()


def test_what_cannot_be_predicted_is_one_sentence(model: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people(3, 1)[["sex", "paid"]].to_csv(new, index=False)
    assert run(["predict", str(model), str(new)]) == 2
    assert "lacks the columns 'income', 'job'" in capsys.readouterr().err
    assert run(["predict", str(model), str(new.with_name("none.csv"))]) == 2
    assert "There is no file" in capsys.readouterr().err


@pytest.fixture
def of_images(tmp_path: Path) -> Path:
    """A model of images with thresholds by group, beside a folder of one image."""
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / "photos" / "a.png")
    module = CNN((4, 8)).build((3, 8, 8), 2).eval()
    task = Task("photos", label_names=("dark", "bright"), group_names=("a", "b"))
    description = ModelDescription(
        task, (3, 8, 8), {"name": "cnn", "channels": [4, 8]}, Preprocessing(images=Recipe(8)), "uint8"
    )
    return TrainedModel(module, description, Repair.fixed("groups", [0, BINS], AS_TRAINED)).save(tmp_path / "model")


def test_thresholds_by_group_of_images_are_left_to_python(of_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = of_images.with_name("photos")
    assert run(["predict", str(of_images), str(photos)]) == 0
    assert "a.png" in capsys.readouterr().out
    for name in ("._a.png", "b.jfif", "list.csv"):
        (photos / name).write_bytes(b"")
    assert run(["predict", str(of_images), str(photos)]) == 0
    assert ".tiff are left out: 2, first b.jfif." in capsys.readouterr().err
    assert run(["predict", str(of_images), str(photos), "--group", "sex"]) == 2
    assert (
        "are applied in Python, by `ffalm.load_model(FOLDER).predict(IMAGES, group=[...])`" in capsys.readouterr().err
    )
    model = ffalm.load_model(of_images)
    assert [*model.predict(photos, group=["a"]), *model.predict(photos, group=["b"])] == ["bright", "dark"]


def test_an_image_whose_name_is_no_text_is_named(of_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = of_images.with_name("photos")
    (photos / "a.png").rename(photos / os.fsdecode(b"\xe9.png"))
    assert run(["predict", str(of_images), str(photos), "--out", str(of_images.with_name("out.csv"))]) == 2
    assert "The name of the image '\\udce9.png' is not UTF-8" in capsys.readouterr().err


def test_the_file_that_is_read_is_never_written_over(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = new.read_bytes()
    for command in (["predict", str(model), str(new)], ["audit", str(new), "--label", "sex", "--group", "sex"]):
        assert run([*command, "--out", str(new)]) == 2
        assert "is the file that is read, which would be lost: name another." in capsys.readouterr().err
    assert new.read_bytes() == before


def test_rows_without_a_known_group_are_counted_and_a_wrong_column_is_refused(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(new)
    frame.loc[:2, "sex"] = ["other", "", "other"]
    frame.to_csv(new, index=False)
    assert run(["predict", str(model), str(new), "--group", "sex"]) == 0
    told = capsys.readouterr().err
    assert "3 of 30 rows have no group, or one that no training row had: they get the single threshold" in told
    assert run(["predict", str(model), str(new), "--group", "job"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and "its groups are 'female', 'male'" in shown.err


def test_the_card_is_printed_or_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["card", str(model)]) == 0
    told = capsys.readouterr().out
    assert told == ffalm.load_model(model).card()
    assert run(["card", str(model), "--out", str(tmp_path / "card.md")]) == 0
    assert (tmp_path / "card.md").read_text(encoding="utf-8") == told


def test_a_model_is_exported_as_onnx(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    assert run(["export", str(model), str(tmp_path / "m.onnx")]) == 0
    assert [one.name for one in onnx.load(tmp_path / "m.onnx").graph.input] == ["income", "job", "sex", "group"]
    assert run(["export", str(model), str(tmp_path / "m.txt")]) == 2
    assert "ends in .onnx" in capsys.readouterr().err


def test_an_output_never_replaces_a_file_of_the_users_own(
    model: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = new.with_name("loans.csv")
    own.write_text("income,paid\n1,yes\n")
    (own.parent / "repair.json").write_text("{}")
    for arguments in (["predict", str(model), str(new), "--out", str(own)], ["card", str(model), "--out", str(own)]):
        assert run(arguments) == 2
        assert "loans.csv exists and is not a" in capsys.readouterr().err
    assert own.read_text() == "income,paid\n1,yes\n"
    with pytest.raises(ffalm.UserError, match=r"repair.json, which would be lost"):
        ffalm.load_model(model).save(own.parent)
    for _ in range(2):  # what we wrote may be written again
        assert run(["card", str(model), "--out", str(own.with_name("card.md"))]) == 0
        assert run(["predict", str(model), str(new), "--out", str(own.with_name("out.csv"))]) == 0


def test_a_file_for_a_model_of_arrays_may_hold_the_group_and_an_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame({"income": np.linspace(-1, 1, 30), "cook": 0.0, "sex": ["female", "male"] * 15, "id": "007"})
    rows.to_csv(tmp_path / "new.csv", index=False)
    answer = answer_of_frames()
    place = answer.save(tmp_path / "model")
    assert run(["predict", str(place), str(tmp_path / "new.csv"), "--group", "sex", "--copy", "id"]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str)
    assert found["prediction"].tolist() == answer.predict(rows, "sex").tolist() and set(found["id"]) == {"007"}
