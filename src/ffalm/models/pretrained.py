"""Models initialised from a file of weights, such as ImageNet's ResNet-18 or another run's model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ffalm.errors import UserError, require
from ffalm.models.interface import Architecture
from ffalm.settings import to_plain

_WANTED = "it takes safetensors, or a file of torch.save(model.state_dict(), ...)"
_COUNTER = "num_batches_tracked"  # of BatchNorm: old files lack it, and nothing depends on it


@dataclass(frozen=True)
class Pretrained:
    """An architecture and a file of weights under its names: safetensors, or a `state_dict` that torch saved.

    The file must match in everything but the last layer, which is initialised by the seed if the file's has another
    shape (such as ImageNet's 1000 labels) or is missing.
    """

    architecture: Architecture
    weights: str

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """The module with the file's weights in it."""
        module = self.architecture.build(shape, labels)
        wanted, found = module.state_dict(), _read(self.check())
        fitting = {name: found[name] for name in wanted if name in found and found[name].shape == wanted[name].shape}
        spared = _last_layer(module) | {name for name in wanted if name.endswith(_COUNTER)}
        wrong = sorted((wanted.keys() | found.keys()) - fitting.keys() - spared)
        require(
            not wrong,
            f"The weights in {self.weights} do not match this model: {', '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''} missing, unknown or of another shape.",
        )
        require(bool(fitting), f"The weights in {self.weights} have no entry that matches this model.")
        module.load_state_dict(fitting, strict=False)
        return module

    def to_plain(self) -> dict[str, Any]:
        """The architecture's settings with the file beside them, as `architecture` reads them."""
        return {**to_plain(self.architecture), "weights": self.weights}

    def check(self) -> Path:
        """The file; a `UserError` if it does not exist, so that callers can check before long work begins."""
        file = Path(self.weights)
        require(file.is_file(), f"There is no file of weights {file}.")
        return file


def from_scratch(model: Architecture) -> Architecture:
    """The architecture without a file of weights, for clients that receive the weights."""
    return model.architecture if isinstance(model, Pretrained) else model


def _last_layer(module: nn.Module) -> set[str]:
    """The parameter names of the output layer."""
    home = list(dict(module.named_parameters()))[-1].rpartition(".")[0]
    return {name for name, _ in module.named_parameters() if name.rpartition(".")[0] == home}


def _read(file: Path) -> Mapping[str, Tensor]:
    """The tensors by name. Invalid files fail in many ways inside torch, and its advice to load them with
    weights_only=False would let the file run code: so every failure gives the same message.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's guesses about files of other formats
            found = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"The weights in {file} cannot be read: {error.strerror or error}.") from None
    except Exception:
        raise UserError(f"The weights in {file} cannot be read: {_WANTED}.") from None
    tensors = isinstance(found, Mapping) and all(isinstance(value, Tensor) for value in found.values())
    require(tensors, f"The file {file} holds no weights by name: {_WANTED}.")
    return found
