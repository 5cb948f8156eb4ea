"""`ffalm.load_model` finds the model of a study, a run or a federation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.federate.makers import config, world
from tests.federate.makers import people as federated_people
from tests.trained_models.test_trained_model import people

import ffalm
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ffalm.Study:
    federation = ffalm.load(people(), label="paid", group="sex", favourable="yes", clients=2)
    out = tmp_path_factory.mktemp("studies") / "study"
    return ffalm.compare(federation, ["fedavg", "ffalm"], seeds=1, rounds=3, lr=0.5, target="dpd <= 0.02", out=out)


def test_a_studys_model_is_its_answers_with_the_thresholds(study: ffalm.Study) -> None:
    answer, model = study.answer(), ffalm.load_model(study.folder)
    assert model.repair is not None and model.repair.to_plain(model.task.group_names) == answer.best.repair
    assert model.facts is not None
    assert (model.facts.verdict, model.facts.target) == (answer.verdict, "dpd <= 0.02")
    labels = {run.label for run in study.results}
    assert labels & set(model.facts.settings) == {answer.chosen.label}  # the card tells the model's own settings
    frame = people(50, 1)
    expected = model.predict(frame, group="sex").tolist()
    study.write_report()
    chosen = ffalm.load_model(study.folder / answer.best.run)  # the report left the thresholds beside the model
    assert chosen.predict(frame, group="sex").tolist() == expected
    others = [run for run in study.results if run.place != answer.best.run]
    assert ffalm.load_model(study.folder / others[0].place).repair is None


def test_an_alpha_that_is_not_the_models_is_refused(study: ffalm.Study, tmp_path: Path) -> None:
    """It was ignored, so that a bank could take the answer at one skew for that at another."""
    people().to_csv(tmp_path / "loans.csv", index=False)
    single = ffalm.compare(
        tmp_path / "loans.csv", "fedavg", seeds=1, rounds=2, lr=0.5, alpha=5, label="paid", group="sex",
        favourable="yes", target="dpd <= 0.1", out=tmp_path / "single",
    )  # fmt: skip
    run = single.folder / single.results[0].place
    saved = ffalm.load_model(single.folder).save(tmp_path / "saved")
    for folder, held in ((single.folder, "one model of alpha 5"), (run, "one model of alpha 5"), (saved, "one model:")):
        with pytest.raises(UserError, match=f"{held}.* leave alpha out"):
            ffalm.load_model(folder, alpha=3)
    for folder in (single.folder, run):
        assert ffalm.load_model(folder, alpha=5).facts == ffalm.load_model(folder).facts
    with pytest.raises(UserError, match="no alpha 3: leave it out"):  # of a federation that is given as it is
        ffalm.load_model(study.folder, alpha=3)


def test_where_sites_have_thresholds_of_their_own_the_site_must_be_named(tmp_path: Path) -> None:
    frame = people(1000).assign(bank=["north", "south"] * 500)
    frame.to_csv(tmp_path / "loans.csv", index=False)
    out = tmp_path / "study"
    study = ffalm.compare(
        tmp_path / "loans.csv", "fedavg", seeds=1, rounds=2, lr=0.5, model="linear", label="paid", group="sex",
        favourable="yes", owner="bank", scope="sites", data_settings={"validation": 0.6}, out=out,
    )  # fmt: skip
    answer = study.answer()
    assert answer.together is not None
    with pytest.raises(UserError, match=r"name the site \(--site\), one of north, south"):
        ffalm.load_model(out)
    for one in answer.sites:
        model = ffalm.load_model(out, site=one.site)
        assert model.repair is not None and model.repair.to_plain(model.task.group_names) == one.repair
        assert model.facts is not None and model.facts.verdict == one.verdict(answer.target)
        assert f"site {one.site}" in model.card()
    with pytest.raises(UserError, match="no site of this study 'nort': did you mean 'north'"):
        ffalm.load_model(out, site="nort")
    saved = ffalm.load_model(out, site="north").save(tmp_path / "north")
    assert ffalm.load_model(saved).repair == ffalm.load_model(out, site="north").repair
    with pytest.raises(UserError, match="leave the site out"):
        ffalm.load_model(saved, site="north")


@pytest.fixture(scope="module")
def blind_study(tmp_path_factory: pytest.TempPathFactory) -> ffalm.Study:
    """A study of a file whose answer is a blind rule."""
    folder = tmp_path_factory.mktemp("studies")
    people(2000).to_csv(folder / "loans.csv", index=False)
    study = ffalm.compare(
        folder / "loans.csv", ["fedavg", "ffalm"], seeds=1, rounds=3, lr=0.5, model="linear", label="paid", group="sex",
        favourable="yes", target="dpd <= 0.03", repair="blind", out=folder / "study",
    )  # fmt: skip
    assert study.answer().chosen.kind == "blind"
    return study


def test_a_report_keeps_a_blind_rule_with_the_model_of_the_groups(
    blind_study: ffalm.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, answer = people(100, 1), blind_study.answer()
    found = ffalm.load_model(blind_study.folder)  # of a study without a report the rule is fitted again
    blind_study.write_report()
    chosen = blind_study.folder / answer.best.run
    assert sorted(blind_study.folder.glob("runs/*/groups")) == [chosen / "groups"]
    monkeypatch.delattr(ffalm.Study, "blind_model")  # predictions neither train nor need the training rows
    for folder in (blind_study.folder, chosen):
        model = ffalm.load_model(folder)
        assert model.rule is not None and model.rule.to_plain(model.task.group_names) == answer.best.repair
        assert model.predict(frame).tolist() == found.predict(frame).tolist()
        assert model.facts is not None and model.facts.verdict == answer.verdict
    assert ffalm.load_model(blind_study.folder).card() == found.card()
    page = (blind_study.folder / "report.html").read_text(encoding="utf-8")
    assert "no threshold was fitted" not in page and "and the model of the groups (groups)" in page
    with pytest.raises(UserError, match="leave the site out"):
        ffalm.load_model(blind_study.folder, site="north")


def test_another_answer_removes_the_blind_rule_of_the_one_before(blind_study: ffalm.Study, tmp_path: Path) -> None:
    blind_study.write_report()
    shutil.copytree(blind_study.folder, tmp_path / "study")
    study = ffalm.Study.load(tmp_path / "study")
    other = ffalm.Study(replace(study.record, repair="single"), study.results, study.folder)
    other.write_report()
    assert not [*study.folder.glob("runs/*/groups"), *study.folder.glob("runs/*/blind.json")]


def test_no_blind_rule_is_fitted_to_rows_that_have_changed(blind_study: ffalm.Study) -> None:
    file = blind_study.folder.parent / "loans.csv"
    whole = file.read_text()
    head, *rows = whole.splitlines(keepends=True)
    file.write_text("".join([head, *reversed(rows)]))  # other rows are held out now
    with pytest.raises(UserError, match="has changed since it was started"):
        ffalm.Study.load(blind_study.folder).answer()
    file.write_text(whole)
    assert ffalm.Study.load(blind_study.folder).answer().chosen.kind == "blind"


def test_without_a_target_one_of_several_runs_must_be_named(tmp_path: Path) -> None:
    federation = ffalm.load(people(200), label="paid", group="sex", favourable="yes", clients=2)
    study = ffalm.compare(federation, ["fedavg"], seeds=2, rounds=1, target=None, out=tmp_path / "study")
    with pytest.raises(UserError, match="name the folder of a run"):
        ffalm.load_model(study.folder)
    model = ffalm.load_model(study.folder / study.results[1].place)
    assert model.facts is not None and model.facts.counts == study.results[1].confusion
    alone = ffalm.compare(federation, ["fedavg"], seeds=1, rounds=1, target=None, out=tmp_path / "alone")
    assert ffalm.load_model(alone.folder).predict(people(3, 1)).shape == (3,)


def test_a_federations_model_is_the_one_that_it_trained(tmp_path: Path) -> None:
    coordinate(config(training={"rounds": 1}), tmp_path / "run", world(tmp_path), pause=0.001)
    model = ffalm.load_model(tmp_path)
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.module.state_dict().items())
    assert set(model.predict(federated_people(12, 5))) <= {"no", "yes"}
    assert model.facts is not None and model.facts.clients == 3


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"encoding.json is missing"):
        ffalm.load_model(tmp_path)


def test_a_study_with_runs_to_come_has_no_answer_yet(study: ffalm.Study, tmp_path: Path) -> None:
    copy = tmp_path / "study"
    shutil.copytree(study.folder, copy)
    (copy / study.results[0].place / "result.json").unlink()
    with pytest.raises(UserError, match="1 of the 2 runs"):
        ffalm.load_model(copy)


def test_a_damaged_model_of_a_run_is_refused(study: ffalm.Study, tmp_path: Path) -> None:
    copy = tmp_path / "study"
    shutil.copytree(study.folder, copy)
    file = copy / study.results[0].place / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model.safetensors of a trained model is missing or damaged"):
        ffalm.load_model(file.parent)
