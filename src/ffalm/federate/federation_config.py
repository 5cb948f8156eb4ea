"""The settings of a federation (`federation.toml`) and of a site (`site.toml`), which check themselves.

The coordinator writes `federation.toml`, which says what data every site must have; `site.toml` is the site's own and
says where its data is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ffalm import config as study
from ffalm.algorithms import Algorithm, Measure
from ffalm.config import AlgorithmEntry
from ffalm.engines import Training
from ffalm.errors import UserError, require, require_known, short_repr
from ffalm.federate.secure.secure_settings import Secure, check_summable
from ffalm.federate.service_settings import Logs, Metrics
from ffalm.federate.settings_files import SettingsFile, check_name, imported_plugins
from ffalm.federate.site_data import (
    LocalData,
    LocalImages,
    LocalTable,
    SharedData,
    SharedImages,
    SharedTable,
    Split,
    local_data,
    shared_data,
)
from ffalm.models import Architecture
from ffalm.privacy import Privacy
from ffalm.settings import build, setting, to_plain
from ffalm.targets.target import Repair, Scope, Target, check_confidence

__all__ = [
    "FederationConfig", "LocalData", "LocalImages", "LocalTable", "Rules", "SharedData", "SharedImages", "SharedTable",
    "SiteConfig", "Split", "why_not_federated",
]  # fmt: skip


_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?")


@dataclass(frozen=True)
class Rules:
    """How the coordinator deals with missing, slow, unsuitable or deviating sites."""

    min_sites: int = setting(2, "Usable updates that a round needs; with fewer, wait and ask again.", least=1)
    deadline: float = 600.0  # seconds for a site to answer in a round
    patience: float = 600.0  # seconds to wait for enough sites before stopping with the state kept
    misfit: Literal["go_on", "wait"] = "go_on"  # a site whose file does not fit: leave it out, or wait for a fix
    min_group: int = setting(10, "Fewest rows for a site to tell a (label, group) cell, or to name a value.", least=0)
    outlier: float = 10.0  # an update is quarantined if its norm is more than this many times the others' median
    aggregation: Literal["mean", "clip", "trimmed", "median", "krum"] = "mean"  # how answers are combined
    liars: int = setting(1, "How many sites 'trimmed' and 'krum' assume to lie.", least=1)
    max_share: float = setting(1.0, "The largest share of a site in means by rows.", above=0, most=1)
    secure: bool = False  # the coordinator sees only sums over sites; the section [secure] has the settings

    def __post_init__(self) -> None:
        """Check the settings that may be infinite; those with a range in their field may not."""
        require(self.deadline > 0, f"The rule 'deadline' must be above 0 seconds; got {self.deadline}.")
        require(self.patience >= 0, f"The rule 'patience' must be 0 seconds or more; got {self.patience}.")
        require(self.outlier > 1, f"The rule 'outlier' must be above 1; got {self.outlier}.")


@dataclass(frozen=True)
class FederationConfig(SettingsFile):
    """`federation.toml`. A site's client number is its index in `sites`."""

    name: str
    sites: tuple[str, ...]
    data: SharedData
    address: str = "127.0.0.1:18000"
    allow: tuple[str, ...] = ()  # addresses or networks that sites may connect from; if empty, from anywhere
    removed: tuple[str, ...] = ()  # sites that no longer take part; they keep their client numbers
    seed: int = field(default=0, metadata={"least": 0})
    rules: Rules = field(default_factory=Rules)
    model: Architecture = field(default_factory=lambda: study.model_of({}))
    training: Training = field(default_factory=Training)
    contender: AlgorithmEntry = field(default_factory=lambda: study.entry_of("ffalm", {}))
    privacy: Privacy | None = None  # noise on everything that the coordinator publishes
    masking: Secure = field(default_factory=Secure)  # how answers are hidden in sums if the rule `secure` is on
    plugins: tuple[str, ...] = ()  # files that register the coordinator's own algorithms
    target: str | None = None  # the fairness target; with one, sites send score histograms of held-out rows at the end
    repair: Repair = "groups"  # the thresholds that the answer to the target may use, or a blind rule
    confidence: float | None = None  # as in `Study.answer`
    scope: Scope = "federation"  # where the target must hold; for sites, each one's histograms are kept with the run
    logs: Logs = field(default_factory=Logs)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        check_name("federation", self.name)
        target = None if self.target in (None, "none") else str(Target.parse(self.target))
        object.__setattr__(self, "target", target)
        check_confidence(self.confidence)
        require(
            self.repair != "blind" or self.scope == "federation",
            f"A blind rule is one for all sites: choose one of repair = 'blind' and scope = {self.scope!r}.",
        )
        require(
            self.target is None or self.privacy is None,
            "The answer to a target rests on score histograms, to which differential privacy adds no noise: choose one "
            "of 'target' and [privacy].",
        )
        _check_algorithm(self)
        require(bool(self.sites), "A federation needs at least one site.")
        for name in self.sites:
            check_name("site", name)
        require("coordinator" not in self.sites, "A site cannot be named 'coordinator', since there is one already.")
        require(  # not only in case: each is a folder, and on macOS North and north are the same
            len({name.casefold() for name in self.sites}) == len(self.sites),
            f"Sites must have different names; got {list(self.sites)}.",
        )
        for name in self.removed:
            require(name in self.sites, f"The setting 'removed' names {name!r}, which is not among the 'sites'.")
        require(bool(self.active), "All sites are removed: a federation needs at least one.")
        gone = f" (without {', '.join(self.removed)})" if self.removed else ""
        require(
            self.rules.min_sites <= len(self.active),
            f"The rule 'min_sites' asks for {self.rules.min_sites} sites, but the federation has {len(self.active)}"
            f"{gone}.",
        )
        if self.rules.secure:
            _check_secure(self)
        require(
            self.privacy is None or self.rules.aggregation == "mean",
            "Differential privacy bounds every site's change by itself: take the rule 'aggregation' or [privacy] out.",
        )
        require(
            self.privacy is None or not self.algorithm.needs_held_out,
            f"{self.algorithm.title} measures gaps on held-out rows, which sites do not report under [privacy]: "
            "measure training rows instead (its setting 'gap' or 'measured'), or remove [privacy].",
        )
        for network in self.allow:
            _check_network(network)
        host, _, port = self.address.rpartition(":")
        require(
            bool(host) and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536,
            f"The address must read HOST:PORT, such as 127.0.0.1:18000; got {short_repr(self.address)}.",
        )
        _check_host(host.strip("[]"))

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its settings."""
        return self.contender.algorithm

    @property
    def active(self) -> tuple[str, ...]:
        """The sites that have not been removed."""
        return tuple(name for name in self.sites if name not in self.removed)

    @property
    def blind(self) -> bool:
        """Whether the answer to the target may use a blind rule, for which a model of the groups is trained."""
        return self.target is not None and self.repair == "blind"

    @property
    def thresholds_at_sites(self) -> bool:
        """Whether each site fits thresholds of its own, which stay there."""
        return self.target is not None and self.scope == "sites" and self.rules.secure

    @property
    def secure(self) -> Secure | None:
        """How answers are hidden in sums; None if they are not."""
        return self.masking if self.rules.secure else None

    @classmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """A checked federation from nested settings; paths of plugins are relative to the folder of their file."""
        sections = ("rules", "data", "model", "training", "privacy", "secure", "algorithm", "logs", "metrics")
        known = ("name", "address", "allow", "sites", "removed", "seed", "plugins", *study.AFTER_TRAINING, *sections)
        require_known("section or setting", known, *settings)
        plugins = imported_plugins(settings, folder)
        given = {name: study.section(settings, name) for name in sections}
        algorithm, masking = given.pop("algorithm"), given.pop("secure")
        values = {
            **given,
            "data": shared_data(settings),
            "model": study.model_of(given["model"], folder),
            "privacy": study.privacy_of(given["privacy"]),
            "masking": build(Secure, masking, "secure"),
            "contender": study.entry_of(str(algorithm.get("name", "ffalm")), algorithm),
            "plugins": plugins,
        }
        require(
            bool(given["rules"].get("secure", False)) or not masking,
            "The section [secure] says how answers are hidden in sums, but the rule 'secure' is not on: write "
            "secure = true under [rules], or take the section out.",
        )
        plain = {name: value for name, value in settings.items() if name not in sections}
        return build(cls, {**plain, **values}, "federation")

    def settings(self) -> dict[str, Any]:
        """The complete nested settings: `parse` gives the federation back, whatever the defaults become."""
        values = to_plain(self)
        masking, algorithm, privacy = (values.pop(name) for name in ("masking", "contender", "privacy"))
        return {
            **values,
            "plugins": [str(Path(name).resolve()) for name in self.plugins],
            "privacy": privacy or {},
            "secure": masking if self.rules.secure else {},
            "algorithm": algorithm,
        }


def _check_host(host: str) -> None:
    """Refuse a host that sites cannot call, or for which the coordinator gets no certificate."""
    try:
        anything = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        require(
            _HOST.fullmatch(host) is not None,
            "The address must name a host as DNS does, such as fair.example, or by its IP address, without http:// and "
            f"in ASCII (xn--...); got {short_repr(host)}.",
        )
        return
    require(
        not anything,
        f"No site can call {host}: write the name or address by which sites reach the coordinator. It listens on all "
        "addresses anyway.",
    )


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UserError(
            f"The setting 'allow' lists addresses or networks, such as 10.0.0.5 or 10.1.0.0/16; got {text!r}."
        ) from None


def why_not_federated(algorithm: Algorithm) -> str | None:
    """Why federations cannot train by an algorithm, in one sentence; None if they can."""
    if algorithm.trains_on != "clients":
        return f"{algorithm.title} is a reference for simulations and trains without a federation: choose another."
    if not algorithm.gradients or algorithm.measure is Measure.NOTHING:
        return None
    return (
        f"{algorithm.title} needs gradients and Tallies of the same rows, and sites do not send both: "
        "choose another algorithm, or simulate it."
    )


def _check_algorithm(config: FederationConfig) -> None:
    """Refuse an algorithm that needs what sites do not send, or what the rules hide from the server."""
    algorithm, rule, refused = config.algorithm, config.rules.aggregation, why_not_federated(config.algorithm)
    require(refused is None, str(refused))
    require(
        not algorithm.products or rule not in ("trimmed", "median"),
        f"{algorithm.title} compares the sites' answers one by one, which aggregation = {rule!r} replaces with a "
        "single combined one: choose 'mean', 'clip' or 'krum'.",
    )


def _check_secure(config: FederationConfig) -> None:
    check_summable(config.algorithm)
    require(
        config.rules.aggregation == "mean",
        f"The rule 'aggregation' compares single answers, which secure aggregation hides: choose one of aggregation = "
        f"{config.rules.aggregation!r} and the rule 'secure'.",
    )
    if config.privacy is not None:
        reach = config.privacy.clip * (1 + 8 * config.privacy.noise)
        require(
            reach <= config.masking.model_range,
            f"With noise a site's change may reach {reach:g} in an entry of the model, beyond the model_range of "
            f"{config.masking.model_range:g} in [secure]: widen it.",
        )
    require(
        config.scope != "both",
        "With scope = 'both' the thresholds of all sites are fitted together, each step from every site's score "
        "histogram, and secure aggregation shows the coordinator only their sum: choose scope = 'sites', for which "
        "each site fits and keeps its own, or take the rule 'secure' out.",
    )
    require(
        not config.thresholds_at_sites or config.confidence is not None,
        "With scope = 'sites' and the rule 'secure' each site fits its thresholds by itself, and must agree on the "
        "confidence before: set 'confidence', such as 0.8.",
    )
    require(
        config.rules.min_sites >= 2,
        "The sum of a single site's answers is its answer: with the rule 'secure', 'min_sites' must be at least 2.",
    )


@dataclass(frozen=True)
class SiteConfig(SettingsFile):
    """`site.toml`: the site's name and where its data is; only the name leaves the site."""

    name: str
    data: LocalData
    split: Split = field(default_factory=Split)
    device: str = "auto"
    secure: bool = False  # whether this site only accepts terms with secure aggregation
    histograms: bool = True  # whether this site sends score histograms to a federation with a fairness target
    min_group: int = 0  # the stricter of this and the federation's rule applies
    min_sites: int = setting(2, "Fewest sites in a secure sum that this site takes part in.", least=2)
    plugins: tuple[str, ...] = ()  # files that register algorithms, as the coordinator has them
    logs: Logs = field(default_factory=Logs)

    def __post_init__(self) -> None:
        check_name("site", self.name)

    @classmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """A checked site from nested settings."""
        known = ("name", "device", "secure", "min_group", "min_sites", "histograms", "plugins", "data", "split", "logs")
        require_known("section or setting", known, *settings)
        data, plugins = local_data(settings), imported_plugins(settings, folder)
        sections = {name: study.section(settings, name) for name in ("split", "logs")}
        return build(cls, {**settings, **sections, "data": data, "plugins": plugins}, "site")
