"""Person files of the form in which the US census publishes them, with invented persons."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: Codes from 1 up of the columns that tasks read, by how many there are.
CODES = {
    "COW": 9, "MAR": 5, "RELP": 18, "SEX": 2, "RAC1P": 9, "DIS": 2, "ESP": 8, "CIT": 5, "MIG": 3, "MIL": 4, "ANC": 4,
    "NATIVITY": 2, "DEAR": 2, "DEYE": 2, "DREM": 2, "ESR": 6, "FER": 2, "PUBCOV": 2, "GCL": 2, "JWTR": 12,
}  # fmt: skip
PLACES = {"OCCP": 530, "POBP": 220, "PUMA": 200, "POWPUMA": 150}
_MISSING = {"COW": 0.1, "FER": 0.6, "ESP": 0.8, "GCL": 0.3, "OCCP": 0.1, "WKHP": 0.2, "JWMNP": 0.3, "POWPUMA": 0.3}


def persons(state: int, rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows of one state; income rises with age, schooling and hours, and is lower for group 2 of SEX."""
    draws = np.random.default_rng([seed, state])
    columns: dict[str, Any] = {"SERIALNO": [f"2018HU{number:07d}" for number in range(rows)], "ST": state}
    columns |= {name: draws.integers(1, count + 1, rows) for name, count in CODES.items()}
    columns |= {name: 10 * draws.zipf(1.3, rows).clip(max=count) for name, count in PLACES.items()}
    columns["RAC1P"] = draws.choice(np.arange(1, 10), rows, p=[0.7, 0.1, 0.01, 0.01, 0.01, 0.07, 0.01, 0.05, 0.04])
    columns["PWGTP"] = draws.integers(0, 200, rows)
    columns["AGEP"] = draws.integers(0, 95, rows)
    columns["SCHL"] = draws.integers(1, 25, rows)
    columns["WKHP"] = draws.integers(1, 80, rows)
    columns["JWMNP"] = draws.integers(1, 60, rows)
    columns["POVPIP"] = draws.integers(0, 502, rows)
    score = columns["SCHL"] * 1500 + columns["WKHP"] * 500 + 300 * columns["AGEP"] - 8000 * (columns["SEX"] == 2)
    columns["PINCP"] = (score + draws.normal(0, 15_000, rows)).round()
    frame = pd.DataFrame(columns)
    for name, share in _MISSING.items():
        frame[name] = frame[name].astype("Int64").mask(draws.random(rows) < share)
    return frame


def write_table(folder: Path, state: int, rows: int, seed: int = 0) -> Path:
    """`psam_pNN.csv` of a state."""
    path = folder / f"psam_p{state:02d}.csv"
    persons(state, rows, seed).to_csv(path, index=False)
    return path


def archive(state: int, rows: int, seed: int = 0) -> bytes:
    """`csv_pXX.zip` of a state, with the readme that the publisher puts beside the table."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as whole:
        whole.writestr(f"psam_p{state:02d}.csv", persons(state, rows, seed).to_csv(index=False))
        whole.writestr("ACS2018_PUMS_README.pdf", b"about the survey")
    return content.getvalue()
