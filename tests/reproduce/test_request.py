"""From what is asked for to studies: the paper's settings, data sets that are there, names of folders and rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.reproduce.request import Request


def test_the_full_study_has_the_papers_settings(data_root: Path) -> None:
    request = Request(data_root=str(data_root))
    settings = request.config("utkface", [1.0, 5.0], request.entries()).to_plain()
    assert settings["seeds"] == list(range(10))
    assert settings["model"]["name"] == "resnet18"
    assert settings["partition"] == {"kind": "balanced", "clients": 10, "alpha": [1.0, 5.0], "min_rows": 10}
    training = settings["training"]
    assert (training["rounds"], training["batch_size"], training["lr"]) == (70, 128, 0.05)
    assert (training["lr_step"], training["lr_decay"], training["clip"]) == (50, 0.5, 1.0)
    algorithms = settings["algorithms"]
    assert algorithms["fairfed"]["step"] == 0.5
    assert (algorithms["fpfl"]["penalty"], algorithms["fpfl"]["dual_lr"]) == (5.0, 0.5)
    ffalm = algorithms["ffalm-paper"]
    assert (ffalm["penalty"], ffalm["dual_lr"], ffalm["dual_lr_growth"], ffalm["dual_init"]) == (2.0, 2.0, 1.05, 0.0)


def test_answers_reach_the_study(data_root: Path) -> None:
    chosen = {
        "partition": "plain",
        "grouping": "white_vs_rest",
        "image-size": "128",
        "schedule": "paper,released-code",
        "dual-data": "epoch_mean",
        "dual-bound": "1",
        "fairfed": "authors",
        "fpfl": "positive_part",
    }
    request = Request(data_root=str(data_root), chosen=chosen)
    config = request.config("utkface", [0.3], request.entries())
    settings = config.to_plain()
    assert settings["partition"]["kind"] == "plain"
    assert settings["data"]["sensitive"] == "white_vs_rest"
    assert settings["data"]["size"] == 128
    algorithms = settings["algorithms"]
    assert algorithms["ffalm-paper-epoch_mean-bound-1"]["dual_bound"] == 1.0
    assert algorithms["ffalm-released-code-epoch_mean-bound-1"]["penalty"] == 5.0
    assert algorithms["fairfed-authors"]["variant"] == "authors"
    assert algorithms["fpfl-positive_part"]["constraint"] == "positive_part"
    labels = [entry.label for entry in request.entries()]
    assert labels == [
        "FedAvg",
        "FairFed (authors)",
        "FPFL (positive part)",
        "FFALM (paper, epoch mean, bound 1)",
        "FFALM (released-code, epoch mean, bound 1)",
    ]


def test_folders_name_the_answers_that_change_all_runs(data_root: Path) -> None:
    assert Request(data_root=str(data_root)).folder_name("utkface") == "utkface"
    changed = Request(data_root=str(data_root), chosen={"partition": "plain", "image-size": "128", "fpfl": "abs"})
    assert changed.folder_name("utkface") == "utkface-partition-plain-image-size-128"
    best = Request(data_root=str(data_root), chosen={"round": "best"})
    assert best.folder_name("utkface") == "utkface-round-best"
    assert best.config("utkface", [0.3], best.entries()).keep == "best"


def test_a_missing_data_set_is_left_out_and_told(data_root: Path) -> None:
    request = Request(data_root=str(data_root))
    assert list(request.sources()) == ["utkface"]
    assert request.missing() == ["celeba"]
    assert Request(data_root=str(data_root), data=("utkface",)).missing() == []


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (lambda root: Request(), "needs the paper's data sets: download UTKFace"),
        (lambda root: Request(data_root=str(root / "nowhere")), "There is no folder"),
        (lambda root: Request(data_root=str(root / "UTKFace")), "holds no celeba/ or UTKFace/"),
        (lambda root: Request(data_root=str(root), data=("celeba",)), "holds no celeba/"),
    ],
)
def test_who_lacks_the_data_is_told_where_to_get_them(data_root: Path, request_of: object, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        request_of(data_root).sources()  # type: ignore[operator]
    assert "https://" in str(caught.value)
    assert "--scale smoke" in str(caught.value)


def test_a_smoke_run_needs_no_files_and_few_seeds() -> None:
    request = Request(scale="smoke")
    assert list(request.sources()) == ["faces"]
    assert len(request.seeds) == 2
    config = request.config("faces", [0.3], request.entries())
    assert config.data.name == "faces"
    assert config.training.rounds < 70


def test_single_settings_of_one_algorithm_can_be_changed(data_root: Path) -> None:
    request = Request(data_root=str(data_root), settings={"algorithms": {"ffalm-paper": {"penalty": 3.0}}})
    config = request.config("utkface", [0.3], request.entries())
    assert config.to_plain()["algorithms"]["ffalm-paper"]["penalty"] == 3.0
    assert len(config.entries) == 4


def test_a_setting_of_one_data_set_is_left_to_it(data_root: Path) -> None:
    (data_root / "celeba").mkdir()
    request = Request(data_root=str(data_root), settings={"celeba": {"split": "identity"}})
    ours = {data: request.config(data, [0.3], request.entries()) for data in ("celeba", "utkface")}
    assert ours["celeba"].to_plain()["data"]["split"] == "identity"
    assert ours["utkface"] == Request(data_root=str(data_root)).config("utkface", [0.3], request.entries())


def test_tables_may_have_some_of_the_papers_rows_alone() -> None:
    asked = Request(scale="smoke", algorithms=("fpfl", "fedavg"))
    assert [entry.key for entry in asked.entries()] == ["fpfl", "fedavg"]
    with pytest.raises(UserError, match="did you mean 'fedavg'"):
        Request(algorithms=("fedavgg",))


def test_unknown_scales_and_data_sets_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'smoke'"):
        Request(scale="smok")
    with pytest.raises(UserError, match="did you mean 'celeba'"):
        Request(data=("celebA",))
