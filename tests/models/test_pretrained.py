"""Models that start from a file: what is taken from it, what is drawn, and which files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ffalm.errors import UserError
from ffalm.models import MLP, Pretrained, ResNet18, architecture, from_scratch

SHAPE = (5,)


def built(model: Any, seed: int = 0, labels: int = 2, shape: tuple[int, ...] = SHAPE) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(model.build(shape, labels).state_dict())


@pytest.fixture
def other() -> dict[str, Tensor]:
    """The weights of some other model of the same kind."""
    return built(MLP((4,)), seed=7)


def written(weights: Any, file: Path) -> str:
    if file.suffix == ".safetensors":
        save_file(weights, file)
    else:
        torch.save(weights, file)
    return str(file)


@pytest.mark.parametrize("name", ["start.safetensors", "start.pth"])
def test_the_model_starts_from_the_files_weights_whatever_the_seed(
    tmp_path: Path, other: dict[str, Tensor], name: str
) -> None:
    model = architecture("mlp", {"hidden": [4], "weights": written(other, tmp_path / name)})
    for seed in (0, 1):
        found = built(model, seed)
        assert found.keys() == other.keys()
        assert all(torch.equal(found[entry], other[entry]) for entry in other)


def test_a_last_layer_for_other_labels_is_drawn_by_the_seed(tmp_path: Path, other: dict[str, Tensor]) -> None:
    model = Pretrained(MLP((4,)), written(other, tmp_path / "start.pth"))
    found, again, scratch = built(model, 3, labels=5), built(model, 4, labels=5), built(MLP((4,)), 3, labels=5)
    *body, weight, bias = found
    assert found[bias].shape == (5,)
    assert torch.equal(found[weight], scratch[weight])
    assert not torch.equal(found[weight], again[weight])
    assert all(torch.equal(found[entry], other[entry]) for entry in body)


def test_a_file_without_the_last_layer_or_batchnorms_counters_is_enough(tmp_path: Path) -> None:
    """As old files of torchvision are, once their thousand labels have been cut off."""
    other = built(ResNet18(), 7, shape=(3, 32, 32))
    kept = {name: value for name, value in other.items() if "fc." not in name and "num_batches" not in name}
    found = built(Pretrained(ResNet18(), written(kept, tmp_path / "start.pth")), shape=(3, 32, 32))
    assert found.keys() == other.keys()
    assert all(torch.equal(found[name], value) for name, value in kept.items())


def test_a_file_for_another_body_is_refused_and_says_where_it_differs(tmp_path: Path, other: dict[str, Tensor]) -> None:
    first = next(iter(other))
    narrow = {**other, first: other[first][:, :3].contiguous()}
    fewer = {name: value for name, value in other.items() if name != first}
    more = {**other, "stem.weight": torch.zeros(2)}
    for weights, word in ((narrow, first), (fewer, first), (more, "stem.weight")):
        with pytest.raises(UserError, match=f"do not match this model: {word} missing, unknown or of another shape"):
            built(Pretrained(MLP((4,)), written(weights, tmp_path / "start.pth")))


def test_many_differences_are_counted_rather_than_listed(tmp_path: Path) -> None:
    weights = {f"layer{i}": torch.zeros(1) for i in range(9)}
    with pytest.raises(UserError, match="and 8 more missing"):
        built(Pretrained(MLP((4,)), written(weights, tmp_path / "start.pth")))


def test_what_is_no_file_of_weights_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    (tmp_path / "broken.pth").write_bytes(b"nothing")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "numbers.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    for name, words in (
        ("missing.pth", "There is no file of weights"),
        ("broken.safetensors", "cannot be read"),
        ("broken.pth", "cannot be read"),
        ("list.pth", "holds no weights by name"),
        ("numbers.pth", "holds no weights by name"),
        ("module.pth", "cannot be read"),
    ):
        with pytest.raises(UserError, match=words) as found:
            built(Pretrained(MLP((4,)), str(tmp_path / name)))
        assert "\n" not in str(found.value)
    with pytest.raises(UserError, match="must be a file name; got 3"):
        architecture("mlp", {"weights": 3})


@pytest.mark.parametrize("content", [b"", b"hello", b"version https://git-lfs", b"\x80\x04", bytes(range(60))])
@pytest.mark.parametrize("name", ["start.pth", "start.safetensors"])
def test_whatever_is_no_file_of_weights_is_refused_in_one_sentence_of_ours(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read: it takes safetensors, or a file of torch\.save"):
        built(Pretrained(MLP((4,)), str(tmp_path / name)))


def test_torchs_advice_to_load_a_pickled_model_all_the_same_is_not_passed_on(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")
    with pytest.raises(UserError) as found:
        built(Pretrained(MLP((4,)), str(tmp_path / "module.pth")))
    assert "weights_only" not in str(found.value)
    assert "trust" not in str(found.value)


def test_a_file_of_which_a_single_layer_takes_nothing_is_refused(tmp_path: Path) -> None:
    for weights in ({}, built(MLP(()), labels=3)):
        with pytest.raises(UserError, match="no entry that matches"):
            built(architecture("linear", {"weights": written(weights, tmp_path / "start.pth")}))


def test_from_scratch_leaves_the_architecture_alone(tmp_path: Path) -> None:
    assert from_scratch(Pretrained(MLP((4,)), "any.pth")) == MLP((4,))
    assert from_scratch(MLP((4,))) == MLP((4,))
