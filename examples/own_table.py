"""Train on a CSV of your own: here a made-up triage table with three labels, three groups and a column of owners."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import ffalm


def write_csv(path: Path, rows: int = 3000) -> None:
    """A table as a hospital group might have it. Replace this by your own file."""
    draws = np.random.default_rng(0)
    age, pulse = draws.integers(18, 90, rows), draws.normal(80, 15, rows)
    region = draws.choice(["north", "south", "west"], rows, p=[0.5, 0.3, 0.2])
    need = (age - 50) / 20 + (pulse - 80) / 15 + 0.4 * (region == "north") + draws.normal(0, 0.7, rows)
    table = pd.DataFrame({"age": age, "pulse": pulse.round(), "region": region})
    table["care"] = np.array(["none", "outpatient", "inpatient"])[np.digitize(need, [-0.5, 1.0])]
    table["hospital"] = draws.choice(["A", "B", "C", "D"], rows)
    table.to_csv(path, index=False)


def main(rounds: int = 30) -> ffalm.Result:
    """Load the table, one client per hospital, train FPFL and print its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "triage.csv"
        write_csv(file)
        federation = ffalm.load(str(file), label="care", group="region", favourable="inpatient", owner="hospital")
    task = federation.task
    print(f"Labels {task.label_names}, favourable {task.label_names[task.favourable]!r}, groups {task.group_names}")
    result = ffalm.simulate(ffalm.FPFL(), federation, model="mlp", rounds=rounds)
    for metric in ("accuracy", "dpd", "eod", "equalized_odds", "worst_group_accuracy"):
        low, high = result.interval(metric)
        print(f"{metric:<22}{100 * result.test[metric]:6.2f}   95 % interval {100 * low:.2f} to {100 * high:.2f}")
    return result


if __name__ == "__main__":
    main()
