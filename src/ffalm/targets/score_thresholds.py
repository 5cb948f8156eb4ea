"""Group thresholds in a score's own units, as `ffalm repair` stores them and anything can apply them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ffalm.arrays import column, inferred
from ffalm.data.category_lookup import as_text, distinct
from ffalm.data.encoding import is_numeric
from ffalm.errors import UserError, require
from ffalm.system.files import path_of, read_json
from ffalm.targets.repair import Repair, draws_of_ids, draws_of_rows, kind_of
from ffalm.targets.score_bins import Array, Codes, ScoreBins
from ffalm.targets.target import Kind

Mix = tuple[tuple[float, float], ...]
"""Thresholds with their probabilities; one threshold with probability 1 if nothing is drawn."""


_ROUNDING = 1e-6  # of probabilities in a file


@dataclass(frozen=True)
class ScoreThresholds:
    """Predict the favourable outcome if score >= threshold, with a threshold for each group."""

    kind: Kind
    groups: Mapping[str, Mix]
    single: float  # for rows whose group is not known

    @classmethod
    def of(cls, repair: Repair, bins: ScoreBins, group_names: tuple[str, ...]) -> ScoreThresholds:
        """The thresholds of a repair that was fitted to bins."""
        mixes = ([(bins.value(edge), weight) for edge, weight in mix] for mix in repair.edges)
        return cls(repair.kind, dict(zip(group_names, map(tuple, mixes), strict=True)), bins.value(repair.single))

    def __getitem__(self, group: str) -> float:
        """The threshold of a group, if none is drawn."""
        require(group in self.groups, f"There is no threshold for a group {group!r}.")
        require(not self.randomised, "These thresholds are randomised: see `groups`.")
        return self.groups[group][0][0]

    @property
    def randomised(self) -> bool:
        """Whether some predictions are drawn."""
        return any(len(mix) > 1 for mix in self.groups.values())

    def chances(self, scores: Array, groups: Codes) -> Array:
        """P(predicted favourable) of each row: 0 or 1 unless randomised; groups outside 0..K-1 are unknown."""
        chance = (scores >= self.single).astype(np.float64)
        for number, mix in enumerate(self.groups.values()):
            own = groups == number
            mine = scores[own]
            reached = np.zeros(len(mine))
            for threshold, probability in mix:
                reached += probability * (mine >= threshold)
            chance[own] = reached
        return chance

    def predict(self, scores: Any, groups: Any = None, ids: Any = None) -> NDArray[np.int64]:
        """1 for the favourable outcome, else 0; rows whose group is missing or new get the single threshold.

        The draw of randomised thresholds depends on the row's id if `ids` are given, so that the same person gets the
        same answer in every call. Without `ids` it depends on the row's score and group, and on how many rows before it
        have the same: tied rows are drawn one by one, and the same rows in the same order get the same answers. Rows
        that are predicted one at a time share a draw if they have the same score and group, so give `ids` for these.
        """
        values = _scores(scores)
        named = pd.Series([None] * len(values)) if groups is None else column(groups, "groups")
        keyed = named if ids is None else column(ids, "ids")
        require(len(values) == len(named) == len(keyed), "Scores, groups and ids must have one entry per row.")
        nameless = int(keyed.isna().sum()) if ids is not None and self.randomised else 0
        require(
            nameless == 0,
            f"{nameless} of {len(keyed)} rows have no id, by which predictions are drawn: give every row one, or none.",
        )
        chance = self.chances(values, codes_of(named, tuple(self.groups)))
        predicted = (chance > 0.5).astype(np.int64)
        drawn = np.flatnonzero((chance > 1e-12) & (chance < 1 - 1e-12))
        if len(drawn):
            keys = [as_text(key) for key in keyed.to_numpy()[drawn]]
            if ids is None:
                contents = (f"{key}\0{float(score)!r}" for key, score in zip(keys, values[drawn], strict=True))
                draws = draws_of_rows(text.encode() for text in contents)
            else:
                draws = draws_of_ids(key.encode() for key in keys)
            predicted[drawn] = chance[drawn] > draws.numpy()
        return predicted

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a file; infinite thresholds, for everybody or nobody, are texts."""
        return {
            "kind": self.kind,
            "single": _text(self.single),
            "groups": {
                name: [{"threshold": _text(value), "probability": weight} for value, weight in mix]
                for name, mix in self.groups.items()
            },
        }

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ScoreThresholds:
        """The inverse of `to_plain`."""
        try:
            groups = {
                str(name): tuple((float(one["threshold"]), float(one["probability"])) for one in mix)
                for name, mix in values["groups"].items()
            }
            single = float(values["single"])
            for mix in (((single, 1.0),), *groups.values()):
                chances = [chance for _, chance in mix]
                sound = min(chances) >= 0 and abs(sum(chances) - 1) < _ROUNDING
                if not sound or any(math.isnan(threshold) for threshold, _ in mix):
                    raise ValueError("a threshold is not a number, or the probabilities of a group do not add up to 1")
            return cls(kind_of(values["kind"]), groups, single)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"These thresholds cannot be read ({error!r}): run the repair again.") from None

    @classmethod
    def load(cls, path: str | Path) -> ScoreThresholds:
        """The thresholds in a `repair.json`."""
        file = path_of(path)
        try:
            values = read_json(file)
        except (OSError, ValueError) as error:
            raise UserError(f"The thresholds in {path} cannot be read: {error}.") from None
        return cls.from_plain(values["thresholds"] if isinstance(values, dict) and "thresholds" in values else values)


def _scores(values: Any) -> Array:
    """Scores as numbers, infinite ones included; nobody can say what a row without a score gets."""
    given = inferred(column(values, "scores"))
    require(is_numeric(given) and not pd.api.types.is_complex_dtype(given.dtype), "The scores must be numbers.")
    scores: Array = given.to_numpy(dtype=np.float64, na_value=np.nan)
    missing = int(np.isnan(scores).sum())
    require(missing == 0, f"{missing} of {len(scores)} rows have no score: leave them out.")
    return scores


def codes_of(column: pd.Series, names: tuple[str, ...]) -> Codes:
    """Each row's place among the names, -1 for a missing value or another one."""
    codes, values = distinct(column)
    places = {name: number for number, name in enumerate(names)}
    return np.array([*(places.get(value, -1) for value in values), -1], dtype=np.int64)[codes]


def _text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
