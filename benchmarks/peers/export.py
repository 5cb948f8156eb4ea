"""Write the work of a comparison to one file: `python export.py FILE --study tabular --rounds 12`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from work import Part
from work import train as learn

from ffalm.data.faces import PARTS, SHARE_OF_YOUNG, Faces
from ffalm.data.types import Examples
from ffalm.engines import Training
from ffalm.engines.sampling import batches
from ffalm.models import ResNet18
from ffalm.partition import Partition
from ffalm.randomness import Purpose, torch_seeded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tabular import dataset, model_of

CLIENTS = 10
EPOCHS = 3


def tabular() -> tuple[Examples, Examples, list[Tensor], Callable[[], nn.Module]]:
    """Adult, plain Dirichlet 0.3: training rows, rows to score, who owns which, and the model."""
    data = dataset(dense=False)
    owned = Partition("plain", CLIENTS, 0.3).split(data, seed=0)
    return data.train, data.test, owned, lambda: model_of("mlp", data.train.x.shape[1])


def images(each: int, scored: int, size: int) -> tuple[Examples, Examples, list[Tensor], Callable[[], nn.Module]]:
    """Drawn faces, half of them young, as many for each client; and ResNet-18."""
    rows = CLIENTS * each
    fewest = max(rows / PARTS[0], scored / PARTS[2]) / 2 / min(SHARE_OF_YOUNG)
    data = Faces(rows=math.ceil(fewest), size=size).load()  # type: ignore[arg-type]
    train, test = _halved(data.train, rows), _halved(data.test, scored)
    return train, test, list(torch.arange(rows).split(each)), lambda: _warm(train)


def _halved(examples: Examples, rows: int) -> Examples:
    """As many of both labels, in turns: a model that has learnt little then still says both."""
    labels = [(examples.y == label).nonzero()[: rows // 2, 0] for label in (0, 1)]
    return examples.take(torch.stack(labels, 1).flatten())


def _warm(examples: Examples) -> nn.Module:
    """ResNet-18 after a few epochs over everybody's images: one that still says the same of all would prove little."""
    model = ResNet18().build(tuple(examples.x.shape[1:]), 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for _ in range(EPOCHS):
        learn(model, Part(examples.x, examples.y, examples.group), torch.randperm(len(examples)), 0.0, 0.0)
    return model


def main() -> None:
    """Seed 0 of either study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--study", choices=["tabular", "images"], required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--each", type=int, default=256, help="images of a client")
    parser.add_argument("--scored", type=int, default=512, help="images to score")
    parser.add_argument("--size", type=int, default=64, help="of an image in pixels")
    parser.add_argument("--double", action="store_true", help="a model in float64, in which everybody then computes")
    asked = parser.parse_args()
    torch.set_default_dtype(torch.float64 if asked.double else torch.float32)
    training = Training()
    train, test, owned, model = tabular() if asked.study == "tabular" else images(asked.each, asked.scored, asked.size)
    with torch_seeded(0, Purpose.MODEL):
        start = model().state_dict()
    orders = [
        torch.cat(
            [batch for client, rows in enumerate(owned) for batch in batches(0, number, client, len(rows), training)]
        )
        for number in range(1, asked.rounds + 1)
    ]
    np.savez(
        asked.file,
        x=train.x.numpy(), y=train.y.numpy(), group=train.group.numpy(),
        test_x=test.x.numpy(), test_y=test.y.numpy(), test_group=test.group.numpy(),
        rows=torch.cat(owned).numpy(), sizes=np.array([len(rows) for rows in owned]),
        orders=torch.stack(orders).int().numpy(),
        **{f"start/{name}": value.numpy() for name, value in start.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
