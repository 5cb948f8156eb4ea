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

from ffalm.data.faces import PARTS, Faces
from ffalm.data.types import Examples
from ffalm.engines import Training
from ffalm.engines.sampling import batches
from ffalm.models import ResNet18
from ffalm.partition import Partition
from ffalm.randomness import Purpose, torch_seeded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tabular import dataset, model_of

CLIENTS = 10


def tabular() -> tuple[Examples, Examples, list[Tensor], Callable[[], nn.Module]]:
    """Adult, plain Dirichlet 0.3: training rows, rows to score, who owns which, and the model."""
    data = dataset(dense=False)
    owned = Partition("plain", CLIENTS, 0.3).split(data, seed=0)
    return data.train, data.test, owned, lambda: model_of("mlp", data.train.x.shape[1])


def images(each: int, scored: int, size: int) -> tuple[Examples, Examples, list[Tensor], Callable[[], nn.Module]]:
    """Drawn faces, as many for each client, in whole batches as far as `each` allows, and ResNet-18."""
    rows = CLIENTS * each
    data = Faces(rows=math.ceil(max(rows / PARTS[0], scored / PARTS[2])) + 10, size=size).load()  # type: ignore[arg-type]
    train, test = data.train.take(torch.arange(rows)), data.test.take(torch.arange(scored))
    owned = list(torch.arange(rows).split(each))
    return train, test, owned, lambda: ResNet18().build((3, size, size), 2)


def main() -> None:
    """Seed 0 of either study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--study", choices=["tabular", "images"], required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--each", type=int, default=256, help="images of a client")
    parser.add_argument("--scored", type=int, default=512, help="images to score")
    parser.add_argument("--size", type=int, default=64, help="of an image in pixels")
    asked = parser.parse_args()
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
