"""An algorithm of your own: local training minimises the mean loss of the group with the highest loss in the batch.

To use it from the command line: ffalm compare --plugin examples/own_algorithm.py --algorithms fedavg,worst-group
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import ffalm


@ffalm.register
@dataclass(frozen=True)
class WorstGroup(ffalm.Algorithm):
    """max over groups s of the batch of mean loss_s; groups absent from the batch do not count."""

    name = "worst-group"
    title = "Worst group"

    def objective(self, batch: ffalm.Batch, state: dict[str, Tensor]) -> Tensor:
        means, present = ffalm.fairness.group_means(batch.losses, batch.groups, batch.mask, batch.task.compared)
        return means.masked_fill(~present, float("-inf")).amax(-1)


def main(rounds: int = 30, rows: int = 20_000) -> dict[str, float]:
    """Print accuracy and the accuracy of the worst group for FedAvg and for the new algorithm."""
    federation = ffalm.load("census", rows=rows, clients=10, partition="plain", alpha=5.0)
    worst = {}
    for algorithm in (ffalm.FedAvg(), WorstGroup()):
        result = ffalm.simulate(algorithm, federation, model="mlp", rounds=rounds)
        worst[algorithm.name] = result.test["worst_group_accuracy"]
        print(f"{algorithm.title:<14} accuracy {result.test['accuracy']:.3f}, worst group {worst[algorithm.name]:.3f}")
    return worst


if __name__ == "__main__":
    main()
