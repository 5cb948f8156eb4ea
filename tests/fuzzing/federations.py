"""Small federations whose messages are recorded, and worlds in which a site's answers are changed."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.federate.makers import NAMES, World, config, exchange_keys, people, site_folder
from tests.fuzzing.mutations import changed_message

from ffalm.engines.remote.message import Failure, Kind, Message, Sites
from ffalm.federate.answer_ledger import digest
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.terms import SiteTerms

_ROWS = (40, 36, 44)
_TARGET = "dpd <= 0.2"


@dataclass(frozen=True)
class Asked:
    """A question, the answer to it, and the site's folder as it was before."""

    kind: Kind
    question: Message
    answer: Message
    folder: Path


@dataclass
class Recorded:
    """What a plain federation, a secure one and one with a blind rule said, and their settings."""

    here: Path
    plans: dict[str, FederationConfig] = field(default_factory=dict)
    folders: dict[str, dict[str, Path]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    known: dict[str, Message] = field(default_factory=dict)  # answers of the plain federation's sites


class _Recording(World):
    """Keeps what the first site is asked, and its folder before it answers."""

    def __init__(self, folders: Mapping[str, Path], into: Recorded, place: str) -> None:
        super().__init__(folders)
        self._into, self._place = into, place

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        before = self._into.here / f"{self._place}-{len(self._into.asked)}"
        if name == NAMES[0]:
            shutil.copytree(self.folders[name], before)
        given = super()._answer(kind, name, message)
        assert isinstance(given, Message), given
        if name == NAMES[0]:
            self._into.asked.append(Asked(kind, message, given, before))
        return given


class Spoiled(World):
    """A world in which some answers are changed. What a site has answered before is not computed again."""

    def __init__(
        self, folders: Mapping[str, Path], draws: random.Random, known: dict[str, Message] | None, most: int = 7
    ) -> None:
        super().__init__(folders)
        self._draws, self._known = draws, known
        self._spoiler, self._spoil_at = draws.choice(NAMES[:3]), draws.randrange(most if known is None else 5)
        self._answers, self.spoiled = 0, ""

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        given = self._honest(kind, name, message)
        if name != self._spoiler or isinstance(given, Failure):
            return given
        self._answers += 1
        if self._answers - 1 != self._spoil_at and not (self.spoiled and self._draws.random() < 0.3):
            return given
        self.spoiled += f" {kind}"
        for _ in range(self._draws.choice((1, 1, 2))):
            given = changed_message(self._draws, given)
        return given

    def _honest(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        if self._known is None or "refused" in message.facts:
            return super()._answer(kind, name, message)
        facts = {key: value for key, value in message.facts.items() if key not in ("terms", "counted")}
        if "terms" in message.facts:
            facts["terms"] = SiteTerms.from_text(str(message.facts["terms"])).run_key
        key = f"{kind} {name} {facts} {digest(message.tensors)}"
        if key not in self._known:
            given = super()._answer(kind, name, message)
            if isinstance(given, Failure):
                return given
            self._known[key] = given
        return self._known[key]


def prepare(here: Path, secure: bool = True) -> Recorded:
    """A small plain federation, led to its end once; with `secure` a secure one, and one with a blind rule, too."""
    logging.getLogger("ffalm.federate").setLevel(logging.CRITICAL)
    made = Recorded(here)
    for place in ("plain", "secure", "blind") if secure and has("cryptography") else ("plain",):
        made.plans[place] = config(
            training={"rounds": 1, "batch_size": 32}, model={"name": "mlp", "hidden": [2]}, target=_TARGET,
            repair="blind" if place == "blind" else "none",
            rules={"secure": place == "secure", "patience": 0.0, "min_sites": 2},
        )  # fmt: skip
        folders = {
            name: site_folder(here / f"{place}-sites", name, people(rows, seed))
            for seed, (name, rows) in enumerate(zip(NAMES[:3], _ROWS, strict=True))
        }
        if place == "secure":
            exchange_keys(folders)
        made.folders[place] = {name: here / f"{place}-fresh" / name for name in folders}
        shutil.copytree(here / f"{place}-sites", here / f"{place}-fresh")
        lead(made.plans[place], here / f"{place}-run", _Recording(folders, made, place))
    return made


def lead(plan: FederationConfig, run: Path, sites: Sites) -> Any:
    return coordinate(plan, run, sites, pause=0.0)


def has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


@contextmanager
def copied(folder: Path, number: int) -> Iterator[Path]:
    copy = folder.with_name(f"case-{number}")
    shutil.copytree(folder, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)
