"""What the paper leaves open: each question by name, its answers, and the default.

Every table lists the answers it was made with; `ffalm reproduce sensitivity` measures the effect of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ffalm.errors import UserError, look_up, unknown
from ffalm.system import toml

#: The answer that leaves a setting as the chosen schedule of FFALM has it.
AS_SCHEDULED = "schedule"

Chosen = Mapping[str, str]
"""The answer to every question, by its name."""


@dataclass(frozen=True)
class Choice:
    """One open question; the first of its options is the default."""

    name: str
    question: str  # what the paper does not say
    options: dict[str, str]  # each answer with what it means
    path: str  # the setting of a study, or of an algorithm, that it writes
    concerns: str = "ffalm"  # the algorithm by which sensitivity measures it
    data: Sequence[str] = ()  # the data sets that have it; all where empty
    numeric: bool = False  # any number is an answer, not only those listed
    several: bool = False  # answers may be joined by commas, each then has its own row
    values: Mapping[str, Any] = field(default_factory=dict)  # what an answer writes, where it is not its own name
    needs: Sequence[str] = ()  # another question and its answer, without which this one keeps its default

    @property
    def default(self) -> str:
        """The answer if none is given."""
        return next(iter(self.options))

    @property
    def of_federation(self) -> bool:
        """Whether it changes the data, their owners, the model or the training, hence every algorithm's runs."""
        return self.path.partition(".")[0] in ("partition", "data", "model", "training", "keep", "fresh_data")

    def value(self, answer: str) -> Any:
        """The value that an answer sets; a number if it spells one."""
        return self.values.get(answer, _number(answer))

    def setting(self, answer: str) -> dict[str, Any]:
        """The setting of a study for an answer, nested by its path."""
        value: Any = self.value(answer)
        for name in reversed(self.path.split(".")):
            value = {name: value}
        return dict(value)

    def applies_to(self, data: str) -> bool:
        """Whether a data set has this question."""
        return not self.data or data in self.data


#: The open questions in the order in which tables list them.
CHOICES = tuple(Choice(name, **values) for name, values in toml.beside(__file__).items())

#: The same of the tables; the figure and the frontier look at validation rows.
SCORED = "A run's model is scored once on the whole test part."

#: Questions without effect on an experiment: sensitivity tries all forms of the metrics itself; the candidates of the
#: frontier have their own schedules, and are judged by the records of their last rounds.
WITHOUT_A_ROLE = {
    "sensitivity": ("metric",),
    "frontier": ("schedule", "dual-data", "dual-bound", "metric", "round"),
}

#: Choices that are fixed here and have no setting, stated for the reader.
SETTLED = (
    "UTKFace is parted into 80 % training, 10 % validation and 10 % test, copies of an image kept together; CelebA has "
    "its official parts, where no other split is set.",
    "The model is a ResNet-18 on pixels scaled to [0, 1], without augmentation, from scratch where no file of weights "
    "is set (--set model.weights=FILE).",
    "A seed draws the partition, the first model and the batches; all algorithms share the same draws.",
    "The learning rate halves after round 50, by the global round; gradients are clipped step by step.",
    SCORED,
    "A batch or client with one group only has no gap and no penalty; the dual moves by the exact weighted mean.",
    "FairFed scores the received model on the clients' training rows.",
)


def choices_by_name() -> dict[str, Choice]:
    """The open questions by name."""
    return {choice.name: choice for choice in CHOICES}


def answered(given: Chosen) -> dict[str, str]:
    """An answer to every question: those given, checked, and the defaults."""
    known = choices_by_name()
    for name, answer in given.items():
        _check(look_up("choice", name, known), answer)
    found = {name: given.get(name, choice.default) for name, choice in known.items()}
    if (why := conflict(found)) is not None:
        raise UserError(why)
    return found


def conflict(chosen: Chosen) -> str | None:
    """Why some answers cannot go together, None where they can."""
    for choice in CHOICES:
        answer = chosen[choice.name]
        if choice.needs and answer != choice.default and chosen[choice.needs[0]] != choice.needs[1]:
            return "--{} {} needs --{} {}.".format(choice.name, answer, *choice.needs)
    return None


def answers(text: str) -> list[str]:
    """The answers in a list with commas."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@dataclass(frozen=True)
class Statement:
    """What is open, and what was chosen."""

    name: str
    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.name}, {self.question}: {self.answer}"


def statements(chosen: Chosen, data: str, by_hand: Mapping[str, Any] | None = None) -> list[Statement]:
    """A statement for every question that a data set has: what was chosen, or was set by hand."""
    instead = by_hand or {}
    return [
        Statement(
            choice.name,
            choice.question,
            f"{instead[choice.name]} (set by hand)." if choice.name in instead else _words(choice, chosen[choice.name]),
        )
        for choice in CHOICES
        if choice.applies_to(data)
    ]


def _words(choice: Choice, answer: str) -> str:
    given = answers(answer) if choice.several else [answer]
    return "; ".join(_meaning(choice, one) for one in given) + "."


def _meaning(choice: Choice, answer: str) -> str:
    if answer == AS_SCHEDULED:
        return choice.options[answer]
    return f"{answer} ({choice.options[answer]})" if answer in choice.options else answer


def _check(choice: Choice, answer: str) -> None:
    given = answers(answer) if choice.several else [answer]
    if not given:
        raise UserError(f"--{choice.name} needs an answer: {', '.join(choice.options)}.")
    for one in given:
        if one not in choice.options and not (choice.numeric and not isinstance(_number(one), str)):
            raise unknown(f"answer to --{choice.name}", one, choice.options)


def _number(text: str) -> int | float | str:
    """The number that a text spells; the text itself if it is not a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
