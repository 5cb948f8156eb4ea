"""Every setting of a study, read from the settings dataclasses, and a configuration file made of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ffalm.cli.setting_words import Setting, settings_of
from ffalm.data import source_class
from ffalm.models import ARCHITECTURES
from ffalm.partition import Partition
from ffalm.run_settings import Privacy, StudySettings, Training
from ffalm.simulation import default_algorithm
from ffalm.studies.study import ALGORITHMS, SEEDS
from ffalm.system import toml
from ffalm.targets.candidates import lagrangians
from ffalm.targets.target import DEFAULT, Target

_SOURCE, _MODEL = "census", "mlp"
_WEIGHTS = "File of pretrained weights: safetensors, or a state_dict that torch saved."
_ABOUT_ALGORITHMS = (
    "The algorithms to compare; their settings: ffalm algorithms NAME. Left out, they are these, and the Lagrangians\n"
    "follow the target. A file that names algorithms has no others, and no target but the one above."
)
#: Settings that a study chooses if they are left out, so the file comments them out; with what it chooses.
_CHOSEN = {
    "kind": "Left out: plain, or silos if [data] names an owner.",
    "lr": "Left out: 0.05, or for a file of your own with a target the best of 0.05, 0.2, 0.5 and 1 on held-out rows.",
}
_EXAMPLES = {"leave_out": '"north"', "weights": '"resnet18.safetensors"'}  # for text settings whose default is none


@dataclass(frozen=True)
class SettingSection:
    """A section of a configuration file; the one without a name is at the top."""

    name: str
    about: str
    settings: tuple[Setting, ...]
    optional: bool = False  # whether its presence alone changes what is done


def sections() -> list[SettingSection]:
    """The sections in the order of a configuration file."""
    study = {one.name: one for one in settings_of(StudySettings, ("model", "training", "privacy"))}
    study["seeds"] = dataclasses.replace(study["seeds"], default=list(range(SEEDS)), flag="--seeds")
    study["engine"] = dataclasses.replace(study["engine"], takes="text")
    study["target"] = dataclasses.replace(study["target"], default=DEFAULT)
    partition = {one.name: one for one in settings_of(Partition)}
    partition["alpha"] = dataclasses.replace(partition["alpha"], takes="number, or a list of numbers")
    plugins = Setting("plugins", "list of text", [], "Python files that register your own algorithms.", "--plugin")
    data = Setting("source", "text", _SOURCE, "Data source: `ffalm data` lists them.", "--data")
    model = Setting("name", "text", _MODEL, "Model: `ffalm models` lists them.", "--model")
    weights = Setting("weights", "text or none", None, _WEIGHTS)
    of_source: Any = source_class(_SOURCE)
    return [
        SettingSection("", "What to run, how, and the fairness target.", (*study.values(), plugins)),
        SettingSection(
            "data",
            f"The data source. Settings of others than {_SOURCE}: ffalm data describe NAME. A file of your own:\n"
            'source = "table", file = "loans.csv", label = "paid", group = "sex", favourable = "yes"',
            (data, *settings_of(of_source)),
        ),
        SettingSection(
            "partition",
            "How training rows are split over clients. If [data] names an owner, its values are the clients: then\n"
            "remove clients and alpha.",
            tuple(partition.values()),
        ),
        SettingSection(
            "model",
            "The model. Settings of others: ffalm models.",
            (model, *settings_of(ARCHITECTURES[_MODEL]), weights),
        ),
        SettingSection("training", "How clients train, and for how long.", settings_of(Training)),
        SettingSection(
            "privacy",
            "Client-level differential privacy: off unless this section is there.",
            settings_of(Privacy),
            optional=True,
        ),
    ]


def configuration() -> str:
    """A configuration file with every setting at its default: the study that `ffalm compare` makes without flags."""
    lines = [
        "# Settings of a study: run it with `ffalm compare --config THIS_FILE`; flags override this file.",
        "# Every setting is at its default, so any line may be left out. Lines that are commented out are off, or",
        "# depend on the rest as their comments say.",
    ]
    for section in sections():
        quiet = "# " if section.optional else ""
        lines += ["", *_comment(section.about)]
        lines += [f"{quiet}[{section.name}]"] if section.name else []
        for one in section.settings:
            off, words = ("# ", f"{one.help} {_CHOSEN[one.name]}") if one.name in _CHOSEN else (quiet, one.help)
            lines += [f"{off}{_line(one)}  # {words}" if words else f"{off}{_line(one)}"]
    lines += ["", *_comment(_ABOUT_ALGORITHMS), *_comment(toml.dumps({"algorithms": _algorithms()}))]
    return "\n".join(lines) + "\n"


def _algorithms() -> dict[str, Any]:
    """What `ffalm compare` compares by default."""
    presets = {name: default_algorithm(name)[1] for name in ALGORITHMS}
    usual = {name: {} if preset is None else {"preset": preset} for name, preset in presets.items()}
    return {**usual, **lagrangians(Target.parse(DEFAULT))}


def _line(one: Setting) -> str:
    if one.required:
        return f"{one.name} = 1.0"
    if one.default is None and "text" in one.takes:  # TOML has no null, and "none" would be a text
        return f"# {one.name} = {_EXAMPLES.get(one.name, '...')}"
    return toml.dumps({one.name: one.default}).strip()


def _comment(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in text.splitlines()]
