"""The files that readers are assumed to have: loans with everything that pages ask of a table, and new rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def write_files(folder: Path, rows: int = 900) -> None:
    """Write loans.csv, north.csv, south.csv, new.csv, scores.csv, scored.csv and decisions.csv."""
    draws = np.random.default_rng(0)
    sex, race = draws.choice(["female", "male"], rows), draws.choice(["Black", "White"], rows, p=[0.4, 0.6])
    income = draws.normal(3 + 0.5 * (sex == "male"), 1)
    paid = np.where(income + draws.normal(0, 1, rows) > 3, "yes", "no")
    score = 1 / (1 + np.exp(-1.5 * (income - 3) + draws.normal(0, 0.3, rows)))
    said = np.where(score > 0.5, "yes", "no")
    features = {
        "income": income.round(3),
        "purpose": draws.choice(["car", "home", "study"], rows),
        "sex": sex,
        "branch": draws.choice(["north", "south", "west"], rows),
    }
    loans = pd.DataFrame({**features, "paid": paid})
    loans.to_csv(folder / "loans.csv", index=False)
    for branch in ("north", "south"):
        loans[loans["branch"] == branch].drop(columns="branch").to_csv(folder / f"{branch}.csv", index=False)
    loans.drop(columns="paid").head(50).to_csv(folder / "new.csv", index=False)
    made = pd.DataFrame({"sex": sex, "race": race, "paid": paid, "said": said, "p": score.round(4)})
    made.to_csv(folder / "decisions.csv", index=False)
    made.to_csv(folder / "scores.csv", index=False)
    scored = made.rename(columns={"paid": "hired", "p": "score"})
    scored.to_csv(folder / "scored.csv", index=False)
