"""Facts about a registered algorithm, built-in or from a plugin, read from its class and from the engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ffalm.algorithms import Algorithm
from ffalm.cli.setting_words import Setting, settings_of
from ffalm.engines import ENGINES
from ffalm.errors import UserError
from ffalm.federate.federation_config import why_not_federated
from ffalm.privacy import Mechanism


@dataclass(frozen=True)
class AlgorithmFacts:
    """An algorithm as `ffalm algorithms` shows it; None for what depends on settings without a default."""

    name: str
    title: str
    summary: str  # the first sentence of its class
    about: str  # the rest of it
    paper: str
    limits: str
    most_groups: int | None  # None: any number
    engines: dict[str, str | None] | None  # each engine, and why it cannot run the algorithm
    federated: bool | None  # in real federations
    secure: bool | None  # under secure aggregation
    private: bool | None  # with differential privacy
    held_out: bool | None  # measures gaps on held-out rows, which sites do not report under differential privacy
    settings: tuple[Setting, ...]
    presets: dict[str, dict[str, Any]]
    default_preset: str | None


def facts_of(cls: type[Algorithm]) -> AlgorithmFacts:
    """The facts of one algorithm."""
    summary, *about = _paragraphs(cls)
    made = _instance(cls)
    federated = None if made is None else why_not_federated(made) is None
    return AlgorithmFacts(
        cls.name,
        cls.title,
        summary,
        "\n".join(about),
        cls.paper,
        cls.limits,
        cls.most_groups,
        None if made is None else {name: engine.lacks(made) for name, engine in ENGINES.items()},
        federated,
        None if made is None else bool(federated) and made.needs_only_sums,
        None if made is None else _takes_noise(made),
        None if made is None else made.needs_held_out,
        tuple(replace(one, flag=None) for one in settings_of(cls)),
        cls.presets(),
        cls.default_preset,
    )


def _paragraphs(cls: type[Algorithm]) -> list[str]:
    """The paragraphs of the class's own docstring, ignoring the signature that `dataclass` generates."""
    written = vars(cls).get("__doc__") or ""
    if written.startswith(f"{cls.__name__}("):
        written = ""
    return [" ".join(paragraph.split()) for paragraph in written.split("\n\n")]


def _instance(cls: type[Algorithm]) -> Algorithm | None:
    """The algorithm with its defaults or a preset's settings; None if neither is enough."""
    for settings in ({}, *cls.presets().values()):
        try:
            return cls(**settings)
        except TypeError:
            continue
    return None


def _takes_noise(algorithm: Algorithm) -> bool:
    try:
        Mechanism.check(algorithm)
    except UserError:
        return False
    return True
