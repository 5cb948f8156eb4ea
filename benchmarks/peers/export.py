"""Write the work of the comparison to one file: `python export.py FILE --rounds 12`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from ffalm.engines import Training
from ffalm.engines.sampling import batches
from ffalm.partition import Partition
from ffalm.randomness import Purpose, torch_seeded

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tabular import dataset, model_of


def main() -> None:
    """Adult, 10 clients, plain Dirichlet 0.3, seed 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, required=True)
    asked = parser.parse_args()
    data, training = dataset(dense=False), Training()
    owned = Partition("plain", 10, 0.3).split(data, seed=0)
    with torch_seeded(0, Purpose.MODEL):
        start = model_of("mlp", data.train.x.shape[1]).state_dict()
    orders = [
        torch.cat(
            [batch for client, rows in enumerate(owned) for batch in batches(0, number, client, len(rows), training)]
        )
        for number in range(1, asked.rounds + 1)
    ]
    np.savez(
        asked.file,
        x=data.train.x.numpy(), y=data.train.y.numpy(), group=data.train.group.numpy(),
        test_x=data.test.x.numpy(), test_y=data.test.y.numpy(), test_group=data.test.group.numpy(),
        rows=torch.cat(owned).numpy(), sizes=np.array([len(rows) for rows in owned]),
        orders=torch.stack(orders).int().numpy(),
        **{f"start/{name}": value.numpy() for name, value in start.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
