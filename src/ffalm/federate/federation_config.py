"""The settings of a federation (`federation.toml`) and of a site (`site.toml`).

The first is written by the coordinator and says which data every site must have; the second is a site's own and says
where its data is. Both are frozen dataclasses that check themselves.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ffalm import config as study
from ffalm import toml
from ffalm.algorithms import Algorithm, Measure
from ffalm.config import AlgorithmEntry
from ffalm.data.group_settings import check_min_group_size, group_columns
from ffalm.engines import Training
from ffalm.errors import UserError, require, shown, unknown
from ffalm.federate.secure.secure_settings import Secure, check_summable
from ffalm.files import write_whole
from ffalm.models import Architecture
from ffalm.plugins import import_plugin
from ffalm.privacy import Privacy
from ffalm.settings import build, to_plain
from ffalm.targets.target import Repair, Target, check_confidence

Value = str | int | float | bool


@dataclass(frozen=True)
class Rules:
    """How the coordinator deals with missing, slow, unsuitable or deviating sites."""

    min_sites: int = 2  # usable updates that a round needs; with fewer, wait and ask again
    deadline: float = 600.0  # seconds that a site has to answer in a round
    patience: float = 600.0  # seconds to wait for enough sites before stopping with the state kept
    misfit: Literal["go_on", "wait"] = "go_on"  # with a site whose file does not fit: leave it out, or wait for a fix
    min_group: int = 10  # fewest rows for a site to tell a (label, group) cell, or to name a value
    outlier: float = 10.0  # an update whose norm is this many times the others' median is quarantined
    aggregation: Literal["mean", "clip", "trimmed", "median", "krum"] = "mean"  # how answers are put together
    liars: int = 1  # how many sites 'trimmed' and 'krum' assume to lie
    max_share: float = 1.0  # the largest share of a site in means by rows
    secure: bool = False  # the coordinator sees sums over sites and no single answer; the section [secure] says how

    def __post_init__(self) -> None:
        require(self.min_sites >= 1, f"The rule 'min_sites' must be at least 1; got {self.min_sites}.")
        require(self.deadline > 0, f"The rule 'deadline' must be above 0 seconds; got {self.deadline}.")
        require(self.patience >= 0, f"The rule 'patience' must be 0 seconds or more; got {self.patience}.")
        require(self.min_group >= 0, f"The rule 'min_group' must be 0 rows or more; got {self.min_group}.")
        require(self.outlier > 1, f"The rule 'outlier' must be above 1; got {self.outlier}.")
        require(self.liars >= 1, f"The rule 'liars' must be at least 1; got {self.liars}.")
        require(0 < self.max_share <= 1, f"The rule 'max_share' must be above 0 and at most 1; got {self.max_share}.")


@dataclass(frozen=True)
class Roles:
    """Which columns are the label and the group, and their values.

    Both may be left to the sites' own values; `label_values` (all of them) and `groups` fix them, and then any other
    value is a misfit; more than two labels must be listed. `group` may name several columns, whose values are crossed.
    Groups of fewer than `min_group_size` training rows in all (by default 30 of crossed columns, else 0) are not
    compared, nor are rows without a group, or whose crossing too few rows of a site share for it to be named.
    """

    label: str
    group: str | tuple[str, ...]
    favourable: Value | None = None
    label_values: tuple[Value, ...] = ()
    groups: tuple[Value, ...] = ()
    min_group_size: int | None = None

    def __post_init__(self) -> None:
        require(
            self.label not in self.group_columns,
            f"The label and the group must be different columns; both are {self.label!r}.",
        )
        check_min_group_size(self.min_group_size)
        require(
            len(self.label_values) != 1,
            "The setting 'label_values' lists all values of the label, two or more, or none to take the sites' own.",
        )
        require(
            len(self.groups) != 1, "The setting 'groups' lists at least two groups, or none to take the sites' own."
        )

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns whose values, crossed, are the groups."""
        return group_columns(self.group)

    @property
    def crossed(self) -> bool:
        """Whether groups are crossings, of which some are rare wherever there are few rows."""
        return len(self.group_columns) > 1


@dataclass(frozen=True)
class SharedTable(Roles):
    """What a table must hold at every site.

    Columns in `drop` are no features anywhere; those in `categorical` are categories even where they are numbers.
    """

    source: ClassVar[str] = "table"

    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    use_group_as_feature: bool = True
    columns: tuple[str, ...] = ()  # the features; left empty, the columns that most sites have


@dataclass(frozen=True)
class SharedImages(Roles):
    """What a folder of images must come with at every site; `size` and `crop` say what becomes of each picture."""

    source: ClassVar[str] = "images"

    size: int = 64
    crop: Literal["centre", "none"] = "centre"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(8 <= self.size <= 1024, f"The image size must be between 8 and 1024 pixels; got {self.size}.")


@dataclass(frozen=True)
class LocalTable:
    """Where a site's table is; `drop` names columns that only this site has and that are no features."""

    source: ClassVar[str] = "table"

    file: str
    separator: str | None = None
    decimal: Literal[".", ","] = "."
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalImages:
    """Where a site's images and the table that names them are; `size` says that they were made for one size only."""

    source: ClassVar[str] = "images"

    folder: str
    labels: str
    file_column: str = "file"
    separator: str | None = None
    skip_bad: bool = False
    size: int | None = None


@dataclass(frozen=True)
class Split:
    """How a site draws its held-out rows: by a column that says train, validation or test, or by shares and a seed."""

    column: str | None = None
    validation: float = 0.1
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            min(self.validation, self.test) > 0 and self.validation + self.test < 1,
            f"The validation and test shares must leave rows to train on; got {self.validation} and {self.test}.",
        )


SharedData = SharedTable | SharedImages
LocalData = LocalTable | LocalImages

_SHARED: dict[str, type[SharedData]] = {"table": SharedTable, "images": SharedImages}
_LOCAL: dict[str, type[LocalData]] = {"table": LocalTable, "images": LocalImages}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class _Settings(ABC):
    """Settings with a file of their own."""

    @classmethod
    @abstractmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """Checked settings from nested ones; plugins are looked for beside the file they are named in."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """The settings in a file, whose name is added to errors about them."""
        try:
            return cls.parse(study.read(file), file.parent)
        except UserError as error:
            if str(file) in str(error):
                raise
            raise UserError(f"{error} (In {file}.)") from None

    def settings(self) -> dict[str, Any]:
        """The complete nested settings: `parse` gives the object back, whatever the defaults become."""
        return to_plain(self)

    def write(self, file: Path) -> None:
        """Write the file that `read` reads."""
        write_whole(file, toml.dumps(self.settings()))


@dataclass(frozen=True)
class FederationConfig(_Settings):
    """`federation.toml`. A site's client number is its index in `sites`."""

    name: str
    sites: tuple[str, ...]
    data: SharedData
    address: str = "127.0.0.1:18000"
    allow: tuple[str, ...] = ()  # addresses or networks that sites may connect from; none: from anywhere
    seed: int = 0
    rules: Rules = Rules()
    model: Architecture = field(default_factory=lambda: study.model_of({}))
    training: Training = field(default_factory=Training)
    contender: AlgorithmEntry = field(default_factory=lambda: study.entry_of("ffalm", {}))
    privacy: Privacy | None = None  # noise on all that the coordinator gives out
    masking: Secure = field(default_factory=Secure)  # how answers are hidden in sums where the rule `secure` says so
    plugins: tuple[str, ...] = ()  # files that register the coordinator's own algorithms
    target: str | None = None  # the fairness target; with one, sites send score histograms of held-out rows at the end
    repair: Repair = "groups"  # the thresholds that the answer to the target may use
    confidence: float | None = None  # as in `Study.answer`

    def __post_init__(self) -> None:
        _check_name("federation", self.name)
        target = None if self.target in (None, "none") else str(Target.parse(self.target))
        object.__setattr__(self, "target", target)
        check_confidence(self.confidence)
        require(
            self.repair != "blind",
            "A federation's answer cannot use a blind rule, which needs a second model of the groups: give 'repair' as "
            "none, single, groups or randomised.",
        )
        require(
            self.target is None or self.privacy is None,
            "The answer to a target rests on score histograms, to which differential privacy adds no noise: choose one "
            "of 'target' and [privacy].",
        )
        require(bool(self.sites), "A federation needs at least one site.")
        require(
            self.algorithm.trains_on == "clients",
            f"{self.algorithm.title} is a reference for simulations and trains without a federation: choose another.",
        )
        for name in self.sites:
            _check_name("site", name)
        require("coordinator" not in self.sites, "A site cannot be named 'coordinator', since there is one already.")
        require(len(set(self.sites)) == len(self.sites), f"Sites must have different names; got {list(self.sites)}.")
        require(self.seed >= 0, f"The seed must be 0 or more; got {self.seed}.")
        require(
            self.rules.min_sites <= len(self.sites),
            f"The rule 'min_sites' asks for {self.rules.min_sites} sites, but the federation has {len(self.sites)}.",
        )
        _check_single_answers(self)
        if self.rules.secure:
            _check_secure(self)
        require(
            self.privacy is None or self.rules.aggregation == "mean",
            "Differential privacy bounds every site's change by itself: take the rule 'aggregation' or [privacy] out.",
        )
        require(
            self.privacy is None or not self.algorithm.needs_held_out,
            f"{self.algorithm.title} measures gaps on held-out rows, of which sites tell nothing in the rounds of a "
            "federation with [privacy]: let it measure training rows (its setting 'gap' or 'measured'), or take "
            "[privacy] out.",
        )
        for network in self.allow:
            _check_network(network)
        host, _, port = self.address.rpartition(":")
        require(
            bool(host) and port.isdecimal() and 0 < int(port) < 65536,
            f"The address must read HOST:PORT, such as 127.0.0.1:18000; got {self.address!r}.",
        )

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its settings."""
        return self.contender.algorithm

    @property
    def secure(self) -> Secure | None:
        """How answers are hidden in sums; None where they are not."""
        return self.masking if self.rules.secure else None

    @classmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """A checked federation from nested settings; plugins are looked for beside the file they are named in."""
        sections = ("rules", "data", "model", "training", "privacy", "secure", "algorithm")
        known = ("name", "address", "allow", "sites", "seed", "plugins", *study.AFTER_TRAINING, *sections)
        _check_known(settings, known)
        plugins = _plugins(settings, folder)
        given = {name: study.section(settings, name) for name in sections}
        algorithm, masking = given.pop("algorithm"), given.pop("secure")
        values = {
            **given,
            "data": _one_of(_SHARED, settings, "federation's data"),
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


@dataclass(frozen=True)
class SiteConfig(_Settings):
    """`site.toml`: the site's name and where its data is; only the name leaves the site."""

    name: str
    data: LocalData
    split: Split = Split()
    device: str = "auto"
    secure: bool = False  # whether this site takes no terms under which its own answers can be seen
    histograms: bool = True  # whether this site sends score histograms to a federation with a fairness target
    min_group: int = 0  # the federation's rule of this name counts only where it is stricter
    min_sites: int = 2  # fewest sites in a secure sum that this site takes part in
    plugins: tuple[str, ...] = ()  # files that register algorithms, as the coordinator has them

    def __post_init__(self) -> None:
        _check_name("site", self.name)
        require(self.min_sites >= 2, f"The setting 'min_sites' of a site must be at least 2; got {self.min_sites}.")

    @classmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """A checked site from nested settings."""
        known = ("name", "device", "secure", "min_group", "min_sites", "histograms", "plugins", "data", "split")
        _check_known(settings, known)
        data, plugins = _one_of(_LOCAL, settings, "site's data"), _plugins(settings, folder)
        sections = {"data": data, "split": study.section(settings, "split"), "plugins": plugins}
        return build(cls, {**settings, **sections}, "site")


def shared_of(settings: Mapping[str, Any]) -> SharedData:
    """What every site must bring, as the coordinator wrote it by `to_plain`."""
    shared: SharedData = _one_of(_SHARED, {"data": settings}, "federation's data")
    return shared


def _one_of(kinds: Mapping[str, type[Any]], settings: Mapping[str, Any], what: str) -> Any:
    """The settings of one of several kinds of data, told apart by `source`; "table" where it is left out."""
    data = study.section(settings, "data")
    source = str(data.pop("source", "table"))
    if source not in kinds:
        raise unknown("data source of a federation", source, kinds)
    return build(kinds[source], data, what)


def _plugins(settings: Mapping[str, Any], folder: Path | None) -> tuple[str, ...]:
    """Plugin files by their full path, each of them run."""
    named = settings.get("plugins", ())
    require(isinstance(named, list | tuple), f"The setting 'plugins' must be a list of files; got {shown(named)}.")
    paths = [(folder or Path()) / Path(str(name)).expanduser() for name in named]
    for path in paths:
        import_plugin(path)
    return tuple(str(path) for path in paths)


def _check_known(settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in settings:
        if name not in known:
            raise unknown("section or setting", name, known)


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UserError(
            f"The setting 'allow' lists addresses or networks, such as 10.0.0.5 or 10.1.0.0/16; got {text!r}."
        ) from None


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"The name of a {kind} takes letters, digits, '-' and '_', since folders bear it; got {name!r}."
        )


def why_not_federated(algorithm: Algorithm) -> str | None:
    """What an algorithm asks of sites that they do not tell, in one sentence; None where there is nothing."""
    if not algorithm.gradients or algorithm.measure is Measure.NOTHING:
        return None
    return (
        f"{algorithm.title} asks for gradients and for Tallies of the same rows, of which sites do not tell both: "
        "choose another algorithm, or simulate it."
    )


def _check_single_answers(config: FederationConfig) -> None:
    """Refuse an algorithm that asks of sites what they do not tell, or of the server what the rules take from it."""
    algorithm, rule, refused = config.algorithm, config.rules.aggregation, why_not_federated(config.algorithm)
    require(refused is None, str(refused))
    require(
        not algorithm.products or rule not in ("trimmed", "median"),
        f"{algorithm.title} compares the sites' answers one by one, and the rule aggregation = {rule!r} puts one in "
        "the place of all: choose 'mean', 'clip' or 'krum'.",
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
        config.rules.min_sites >= 2,
        "The sum of a single site's answers is its answer: with the rule 'secure', 'min_sites' must be at least 2.",
    )
