"""Compare algorithms over several seeds from Python: accuracy and fairness gaps, mean and standard deviation.

Each seed draws its own partition of the rows, its own initial model and its own batches.
"""

from __future__ import annotations

from statistics import mean, stdev

import ffalm

ALGORITHMS = {"FedAvg": ffalm.FedAvg(), "FPFL": ffalm.FPFL(), "FFALM (safe)": ffalm.FFALM.preset("safe")}
METRICS = ("accuracy", "dpd", "eod")  # EOD is the equal opportunity difference


def main(rounds: int = 30, seeds: int = 3, rows: int = 20_000) -> dict[str, dict[str, float]]:
    """Print one line per algorithm and return the means."""
    federations = [
        ffalm.load("census", rows=rows, clients=10, partition="plain", alpha=5.0, seed=seed) for seed in range(seeds)
    ]
    means: dict[str, dict[str, float]] = {}
    print(f"{'algorithm':<14}" + "".join(f"{metric:>18}" for metric in METRICS))
    for name, algorithm in ALGORITHMS.items():
        results = ffalm.simulate(algorithm, federations, model="mlp", rounds=rounds, seed=list(range(seeds)))
        values = {metric: [100 * result.test[metric] for result in results] for metric in METRICS}
        means[name] = {metric: mean(found) for metric, found in values.items()}
        print(f"{name:<14}" + "".join(f"{mean(found):>10.2f} ± {stdev(found):5.2f}" for found in values.values()))
    return means


if __name__ == "__main__":
    main()
