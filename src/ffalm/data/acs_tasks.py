"""Facts about the census PUMS person files: the prediction tasks of Ding et al. (NeurIPS 2021), codes and states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

#: Measured quantities, and educational attainment, whose codes are in order; every other column is a category.
NUMERIC = ("AGEP", "SCHL", "WKHP", "JWMNP", "PINCP", "POVPIP")

#: Columns that later years of the survey have renamed.
RENAMED = {"RELP": "RELSHIPP", "JWTR": "JWTRNS", "ST": "STATE"}

#: Places that are numbered within a state.
WITHIN_STATE = ("PUMA", "POWPUMA")

#: The meaning of codes, for the columns that define groups.
MEANINGS = {
    "SEX": {1: "male", 2: "female"},
    "RAC1P": {
        1: "White",
        2: "Black",
        3: "American Indian",
        4: "Alaska Native",
        5: "American Indian or Alaska Native",
        6: "Asian",
        7: "Pacific Islander",
        8: "other race",
        9: "two or more races",
    },
}

_HEALTH = ("DIS", "DEAR", "DEYE", "DREM")
_ORIGIN = ("CIT", "MIL", "ANC", "NATIVITY")
_PERSON = ("AGEP", "SCHL", "MAR", "SEX", "RAC1P", "ESP")


@dataclass(frozen=True)
class AcsTask:
    """What is predicted from which columns, for which persons."""

    label: str
    label_names: tuple[str, str]  # the favourable one last: the class that is 1 in the public definition
    target: str  # the column that the label is computed from
    favourable: Callable[[pd.Series], pd.Series]
    features: tuple[str, ...]
    filter_columns: tuple[str, ...] = ()
    kept: Callable[[pd.DataFrame], pd.Series] | None = None  # the persons that the task is about; None: everybody


TASKS = {
    "income": AcsTask(
        "income",
        ("at most 50,000", "over 50,000"),
        "PINCP",
        lambda column: column > 50_000,
        ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P"),
        ("AGEP", "PINCP", "WKHP", "PWGTP"),
        lambda rows: (rows["AGEP"] > 16) & (rows["PINCP"] > 100) & (rows["WKHP"] > 0) & (rows["PWGTP"] >= 1),
    ),
    "employment": AcsTask(
        "employment",
        ("not employed", "employed"),
        "ESR",
        lambda column: column == 1,
        (*_PERSON, "RELP", "MIG", *_HEALTH, *_ORIGIN),
    ),
    "coverage": AcsTask(
        "public health coverage",
        ("not covered", "covered"),
        "PUBCOV",
        lambda column: column == 1,
        (*_PERSON, "MIG", *_HEALTH, *_ORIGIN, "PINCP", "ESR", "ST", "FER"),
        ("AGEP", "PINCP"),
        lambda rows: (rows["AGEP"] < 65) & (rows["PINCP"] <= 30_000),
    ),
    "mobility": AcsTask(
        "residence a year ago",
        ("moved", "same house"),
        "MIG",
        lambda column: column == 1,
        (*_PERSON, "RELP", *_HEALTH, *_ORIGIN, "GCL", "COW", "ESR", "WKHP", "JWMNP", "PINCP"),
        ("AGEP",),
        lambda rows: (rows["AGEP"] > 18) & (rows["AGEP"] < 35),
    ),
    "travel_time": AcsTask(
        "travel time to work",
        ("at most 20 minutes", "over 20 minutes"),
        "JWMNP",
        lambda column: column > 20,
        (*_PERSON, "RELP", "MIG", "DIS", "CIT", "PUMA", "ST", "OCCP", "JWTR", "POWPUMA", "POVPIP"),
        ("AGEP", "PWGTP", "ESR"),
        lambda rows: (rows["AGEP"] > 16) & (rows["PWGTP"] >= 1) & (rows["ESR"] == 1),
    ),
}

#: Postal codes by the numbers that the survey gives to states.
STATES = {
    1: "AL", 2: "AK", 4: "AZ", 5: "AR", 6: "CA", 8: "CO", 9: "CT", 10: "DE", 11: "DC", 12: "FL", 13: "GA", 15: "HI",
    16: "ID", 17: "IL", 18: "IN", 19: "IA", 20: "KS", 21: "KY", 22: "LA", 23: "ME", 24: "MD", 25: "MA", 26: "MI",
    27: "MN", 28: "MS", 29: "MO", 30: "MT", 31: "NE", 32: "NV", 33: "NH", 34: "NJ", 35: "NM", 36: "NY", 37: "NC",
    38: "ND", 39: "OH", 40: "OK", 41: "OR", 42: "PA", 44: "RI", 45: "SC", 46: "SD", 47: "TN", 48: "TX", 49: "UT",
    50: "VT", 51: "VA", 53: "WA", 54: "WV", 55: "WI", 56: "WY", 72: "PR",
}  # fmt: skip
