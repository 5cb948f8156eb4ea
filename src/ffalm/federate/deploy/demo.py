"""A federation to try things on: generated census people, given unevenly to sites that each keep a file of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ffalm.data.census import Census
from ffalm.data.types import Dataset, Examples
from ffalm.errors import unknown
from ffalm.partition import Partition
from ffalm.targets.target import DEFAULT

DEMOS = ("census",)
SITES = ("north", "south", "west", "east")
LABEL = "income-over-50K"

#: What the demonstration agrees on, below whatever the user says.
SETTINGS: dict[str, Any] = {
    "data": {"source": "table", "label": LABEL, "group": "sex", "favourable": "yes"},
    "training": {"rounds": 10},
    "target": DEFAULT,
}
_SKEW = 1.0


def require_known(name: str) -> None:
    """There is one demonstration so far."""
    if name not in DEMOS:
        raise unknown("demonstration", name, DEMOS)


def site_names(count: int) -> list[str]:
    """Names for so many sites."""
    return [SITES[number] if number < len(SITES) else f"site-{number + 1}" for number in range(count)]


def file_name(number: int) -> str:
    """The file of a site; every second one is Parquet, since not everybody keeps the same kind."""
    return "people.parquet" if number % 2 else "people.csv"


def write_files(folder: Path, sites: list[str], seed: int, rows: int) -> None:
    """Split the people by a Dirichlet draw over incomes, and write each site's part into its folder."""
    import torch

    raw = Census(rows=rows, data_seed=seed).read()
    frame = raw.features.assign(**{LABEL: [raw.task.label_names[label] for label in raw.y]})
    everybody = Examples(torch.arange(rows), torch.from_numpy(raw.y), torch.from_numpy(raw.group))
    dataset = Dataset(raw.task, everybody, everybody, everybody)
    cut = Partition(kind="plain", clients=len(sites), alpha=_SKEW, min_rows=max(10, rows // (20 * len(sites))))
    for number, (site, owned) in enumerate(zip(sites, cut.split(dataset, seed), strict=True)):
        part, path = frame.iloc[owned.numpy()], folder / site / file_name(number)
        if path.suffix == ".csv":
            part.to_csv(path, index=False)
        else:
            part.to_parquet(path, index=False)
