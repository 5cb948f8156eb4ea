"""Makes a federation from flags, over a settings file, over those of the demonstration, over defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ffalm.config import read, section
from ffalm.data.census import Census
from ffalm.data.types import Dataset, Examples
from ffalm.errors import look_up, require, short_repr
from ffalm.federate.deploy.folder import FederationFolder, create
from ffalm.federate.federation_config import FederationConfig, LocalData, LocalImages, LocalTable, SiteConfig
from ffalm.partition import Partition
from ffalm.settings import merged
from ffalm.targets.target import DEFAULT

#: With FFALM's own settings its dual may diverge on unequal sites.
_PRESET = {"ffalm": "safe"}
_MOST_SITES = 1000

_DEMO = "census"
_SITES = ("north", "south", "west", "east")
LABEL = "income-over-50K"

#: Settings of the demonstration, which the user's override.
_SETTINGS: dict[str, Any] = {
    "data": {"source": "table", "label": LABEL, "group": "sex", "favourable": "yes"},
    "training": {"rounds": 10},
    "target": DEFAULT,
}
_SKEW = 1.0  # of its split


def make(
    path: Path,
    sites: list[str],
    asked: dict[str, Any],
    file: Path | None = None,
    demo: str | None = None,
    rows: int = 45_000,
) -> FederationFolder:
    """Write the folder of a new federation; for a demonstration, also each site's part of `rows` rows.

    `sites` are names or, for a demonstration, one number.
    """
    below: dict[str, Any] = {"name": path.resolve().name}
    if demo is not None:
        look_up("demonstration", demo, {_DEMO: None})
        below = merged(below, _SETTINGS)
    wanted = merged(read(file) if file else {}, asked)
    if wanted.get("privacy"):
        below.pop("target", None)  # the demonstration's own; the two do not go together
    whole = merged(below, wanted)
    named = whole.get("sites", [])
    require(isinstance(named, list), f"The setting 'sites' must be a list of names; got {short_repr(named)}.")
    names = _names(sites, named, demo)
    chosen = section(whole, "algorithm")
    name = str(chosen.setdefault("name", "ffalm"))
    if name in _PRESET:
        chosen.setdefault("preset", _PRESET[name])
    rules = {"min_sites": min(2, len(names)), **section(whole, "rules")}
    settings = {**whole, "sites": names, "algorithm": chosen, "rules": rules}
    config = FederationConfig.parse(settings, file.parent if file else None)
    members = [new_site(config, site, file_name(number) if demo else "data.csv") for number, site in enumerate(names)]

    def fill(folder: Path) -> None:
        if demo is not None:
            write_files(folder, names, config.seed, rows)

    return create(path, config, members, fill)


def _names(sites: list[str], before: list[str], demo: str | None) -> list[str]:
    """The sites that the flag names, or the file, or those of the demonstration."""
    if demo is not None and not before and (not sites or sites[0].isdecimal()):
        count = (int(sites[0]) if len(sites[0]) < 10 else _MOST_SITES + 1) if sites else 3
        require(count >= 1, "A federation needs at least one site.")
        require(count <= _MOST_SITES, f"A demonstration has at most {_MOST_SITES} sites; got {short_repr(sites)}.")
        return site_names(count)
    names = sites or [str(name) for name in before]
    require(bool(names), "Name the sites with --sites, such as --sites north,south,west.")
    return names


def new_site(config: FederationConfig, name: str, file: str = "data.csv") -> SiteConfig:
    """The first settings of a site, which its operator may change. They include the rules that protect its rows, which
    then hold even if federation.toml changes."""
    images = config.data.source == "images"
    data: LocalData = LocalImages(folder="images", labels="labels.csv") if images else LocalTable(file=file)
    return SiteConfig(name=name, data=data, secure=config.rules.secure, min_group=config.rules.min_group)


def site_names(count: int) -> list[str]:
    """Names for this number of sites."""
    return [_SITES[number] if number < len(_SITES) else f"site-{number + 1}" for number in range(count)]


def file_name(number: int) -> str:
    """The file of a site of the demonstration; every second one is Parquet."""
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
