"""The settings of a site (`site.toml`): its own, and only its name leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ffalm import config as study
from ffalm.errors import require
from ffalm.federate.service_settings import Logs
from ffalm.federate.settings_files import SettingsFile, check_known, check_name, imported_plugins
from ffalm.federate.site_data import LocalData, Split, local_data
from ffalm.settings import build


@dataclass(frozen=True)
class SiteConfig(SettingsFile):
    """`site.toml`: the site's name and where its data is; only the name leaves the site."""

    name: str
    data: LocalData
    split: Split = field(default_factory=Split)
    device: str = "auto"
    secure: bool = False  # whether this site takes no terms under which its own answers can be seen
    histograms: bool = True  # whether this site sends score histograms to a federation with a fairness target
    min_group: int = 0  # the federation's rule of this name counts only where it is stricter
    min_sites: int = 2  # fewest sites in a secure sum that this site takes part in
    plugins: tuple[str, ...] = ()  # files that register algorithms, as the coordinator has them
    logs: Logs = field(default_factory=Logs)

    def __post_init__(self) -> None:
        check_name("site", self.name)
        require(self.min_sites >= 2, f"The setting 'min_sites' of a site must be at least 2; got {self.min_sites}.")

    @classmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """A checked site from nested settings."""
        known = ("name", "device", "secure", "min_group", "min_sites", "histograms", "plugins", "data", "split", "logs")
        check_known(settings, known)
        data, plugins = local_data(settings), imported_plugins(settings, folder)
        sections = {name: study.section(settings, name) for name in ("split", "logs")}
        return build(cls, {**settings, **sections, "data": data, "plugins": plugins}, "site")
