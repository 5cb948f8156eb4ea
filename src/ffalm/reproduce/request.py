"""What to reproduce: data sets, scale and answers to the open questions, and the studies for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ffalm.config import StudyConfig, parse
from ffalm.errors import UserError, require, require_known
from ffalm.reproduce.choices import AS_SCHEDULED, CHOICES, Chosen, answered, answers, choices_by_name
from ffalm.reproduce.paper import ALGORITHMS, HYPERPARAMETERS, SEEDS, STUDY, TITLES
from ffalm.settings import merged

SCALES = ("full", "smoke")

#: Where each data set may lie below the data root.
_PLACES = {"celeba": ("celeba", "CelebA"), "utkface": ("UTKFace", "utkface")}

WHERE_TO_GET_THEM = (
    "download UTKFace (https://susanqq.github.io/UTKFace/) and CelebA "
    "(https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html), unpack them as UTKFace/ and celeba/ in one folder and name "
    "it with --data-root, or try it on drawn faces with --scale smoke."
)

#: The smoke scale: the same code path in about a minute, on drawn faces with a small network.
SMOKE_DATA = "faces"
SMOKE_SEEDS = 2
_SMOKE: dict[str, Any] = {
    "data": {"rows": 2_000},
    "partition": {"clients": 4},
    "model": {"name": "cnn", "channels": [8, 16, 16]},
    "training": {"rounds": 12, "batch_size": 16, "lr": 0.3},
}
#: Snapshots of a ResNet-18 take longer than a round of UTKFace; the layout suits convolutions on a GPU.
_FULL: dict[str, Any] = {"checkpoint_every": 10, "channels_last": True}


@dataclass(frozen=True)
class Entry:
    """One algorithm of the tables: its section in a study, and its label."""

    key: str
    algorithm: str
    label: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Everything that a reproduction needs, except the output folder."""

    scale: str = "full"
    data_root: str | None = None
    data: tuple[str, ...] = ()  # the data sets to use; those that are there where empty
    algorithms: tuple[str, ...] = ()  # the rows of the tables; all of the paper's where empty
    seeds: tuple[int, ...] = ()
    chosen: Chosen = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # any setting of a study, on top of the paper's; those
    # in a section with the name of a data set are for that one's data alone
    varied: tuple[str, ...] = ()  # the questions that `sensitivity` asks; all where empty

    def __post_init__(self) -> None:
        require_known("scale", SCALES, self.scale)
        require_known("data set of the paper", TITLES, *self.data)
        require_known("algorithm of the paper", ALGORITHMS, *self.algorithms)
        require_known("choice", choices_by_name(), *self.varied)
        sections = {name: self.settings.get(name, {}) for name in ("algorithms", *TITLES)}
        _require_sections(sections)
        _require_sections({f"algorithms.{name}": section for name, section in sections["algorithms"].items()})
        object.__setattr__(self, "chosen", answered(self.chosen))
        if not self.seeds:
            object.__setattr__(self, "seeds", tuple(range(SMOKE_SEEDS if self.smoke else SEEDS)))

    @property
    def smoke(self) -> bool:
        """Whether this only checks that everything works; its numbers are not comparable with the paper's."""
        return self.scale == "smoke"

    def sources(self) -> dict[str, str | None]:
        """The data sets to use, in the paper's order, with their folders."""
        if self.smoke:
            return {SMOKE_DATA: None}
        if self.data_root is None:
            raise UserError(f"This needs the paper's data sets: {WHERE_TO_GET_THEM}")
        root = Path(self.data_root)
        require(root.is_dir(), f"There is no folder {root}: {WHERE_TO_GET_THEM}")
        places = {name: _folder(root, name) for name in self._wanted}
        found: dict[str, str | None] = {name: str(place) for name, place in places.items() if place is not None}
        missing = [name for name in self.data if name not in found]
        if missing or not found:
            what = " or ".join(_PLACES[name][0] + "/" for name in missing or self._wanted)
            raise UserError(f"The folder {root} holds no {what}: {WHERE_TO_GET_THEM}")
        return found

    def missing(self) -> list[str]:
        """Requested data sets of the paper that are missing."""
        return [] if self.smoke else [name for name in self._wanted if name not in self.sources()]

    @property
    def _wanted(self) -> list[str]:
        return [name for name in TITLES if name in self.data or not self.data]

    def folder_name(self, data: str) -> str:
        """The study folder of a data set: its name, and every answer that changes the federation of its runs."""
        changed = [
            f"{choice.name}-{self.chosen[choice.name]}"
            for choice in CHOICES
            if choice.of_federation and choice.applies_to(data) and self.chosen[choice.name] != choice.default
        ]
        return "-".join([data, *changed])

    def entries(self, algorithms: Sequence[str] = ()) -> list[Entry]:
        """The wanted algorithms under the chosen answers; FFALM once for every schedule."""
        found = []
        for algorithm in algorithms or self.algorithms or ALGORITHMS:
            schedules = answers(self.chosen["schedule"]) if algorithm == "ffalm" else [""]
            found += [_entry(algorithm, self.chosen, schedule) for schedule in schedules]
        return found

    def config(self, data: str, alphas: Sequence[float], entries: Sequence[Entry]) -> StudyConfig:
        """The study of some algorithms on one data set at these skews."""
        base = merged(STUDY, _SMOKE if self.smoke else _FULL)
        source: dict[str, Any] = {"source": data}
        if not self.smoke:
            source["root"] = self.sources()[data]
        settings = merged(base, {"data": source, "partition": {"alpha": list(alphas)}, "seeds": list(self.seeds)})
        for choice in CHOICES:
            if choice.of_federation and choice.applies_to(data):
                settings = merged(settings, choice.setting(self.chosen[choice.name]))
        own = self._own(data)
        changed = own.pop("algorithms", {})
        algorithms = {
            entry.key: merged(merged(entry.settings, changed.get(entry.algorithm, {})), changed.get(entry.key, {}))
            for entry in entries
        }
        return parse({**merged(settings, own), "algorithms": algorithms})

    def check_names(self, entries: Sequence[Entry]) -> None:
        """Refuse settings by hand for what is neither an algorithm of the paper nor a form of one that is run."""
        known = list(dict.fromkeys([*ALGORITHMS, *(entry.key for entry in entries)]))
        require_known("algorithm here", known, *self.settings.get("algorithms", {}))

    def by_hand(self, data: str) -> dict[str, Any]:
        """The open questions for which a setting by hand overrides the chosen answer, with its value."""
        found = {}
        for choice in CHOICES:
            value: Any = self._own(data)
            for name in choice.path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if choice.of_federation and value not in (None, choice.value(self.chosen[choice.name])):
                found[choice.name] = value
        return found

    def _own(self, data: str) -> dict[str, Any]:
        """The settings by hand that concern a data set."""
        shared = {name: section for name, section in self.settings.items() if name not in TITLES}
        return merged({"data": self.settings.get(data, {})}, shared)


def _require_sections(sections: Mapping[str, Any]) -> None:
    for name, section in sections.items():
        message = f"{name!r} is a section of settings: set what is in it, as in {name}.NAME=VALUE; got {section!r}."
        require(isinstance(section, Mapping), message)


def _entry(algorithm: str, chosen: Chosen, schedule: str) -> Entry:
    """One algorithm under the chosen answers; answers other than the default show in its key and label."""
    settings: dict[str, Any] = {"name": algorithm}
    key, differing = [algorithm], []
    if algorithm == "ffalm":
        settings["preset"] = schedule
        key, differing = [algorithm, schedule], [schedule]
    if schedule in ("", "paper"):
        settings |= HYPERPARAMETERS[algorithm]
    for choice in CHOICES:
        if choice.concerns != algorithm or choice.of_federation or choice.path in ("preset", "metric"):
            continue
        answer = chosen[choice.name]
        if answer != AS_SCHEDULED:
            settings |= choice.setting(answer)
        if answer != choice.default:
            key.append(answer if choice.name != "dual-bound" else f"bound-{answer}")
            differing.append(answer.replace("_", " ") if choice.name != "dual-bound" else f"bound {answer}")
    title = {"fedavg": "FedAvg", "fairfed": "FairFed", "fpfl": "FPFL", "ffalm": "FFALM"}[algorithm]
    return Entry("-".join(key), algorithm, f"{title} ({', '.join(differing)})" if differing else title, settings)


def _folder(root: Path, name: str) -> Path | None:
    return next((root / place for place in _PLACES[name] if (root / place).is_dir()), None)
