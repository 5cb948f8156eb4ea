"""Tables drawn from made-up distributions, awkward in different ways, whose truth is known (`unseen_tables.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FRESH = 100_000  # rows on which answers are judged
Rng = np.random.Generator


def share(logit: Any) -> Any:
    """The logistic function."""
    return 1 / (1 + np.exp(-logit))


def pick(rng: Rng, rows: int, **weights: float) -> NDArray[np.object_]:
    """Categories drawn with these weights."""
    total = sum(weights.values())
    return rng.choice(np.array(list(weights), dtype=object), rows, p=[one / total for one in weights.values()])


def effects(seed: int, count: int, size: float) -> NDArray[np.float64]:
    """Effects of categories, the same in every draw of a table."""
    return np.random.default_rng(seed).normal(0, size, count)


def labelled(rng: Rng, logit: Any, columns: dict[str, Any]) -> pd.DataFrame:
    """The columns with an outcome drawn by its logit."""
    return pd.DataFrame(columns | {"outcome": np.where(rng.random(len(logit)) < share(logit), "good", "bad")})


def hospitals(rng: Rng, rows: int) -> pd.DataFrame:
    """Seven hospitals of very unequal size with own label rates and own codes of wards; a long-tailed measurement."""
    place = rng.choice(7, rows, p=np.array([40, 25, 15, 10, 6, 3, 1]) / 100)
    sex, ward, number = pick(rng, rows, F=52, M=48), rng.integers(0, 4, rows), rng.integers(1, 4, rows)
    age = np.clip(rng.normal(58 + 2 * place, 16), 18, 99).round()
    crp = np.exp(rng.normal(2 + 0.2 * (sex == "M"), 1.2)).round(2)
    logit = (
        1.5 - 0.035 * (age - 60) - 0.5 * np.log(crp + 0.01) + np.array([0, 0.8, -0.9, 0.2])[ward] - 0.5 * (sex == "M")
    )
    codes = [f"H{a}-{b}{c}" for a, b, c in zip(place, ward, number, strict=True)]
    columns = {"owner": [f"H{one}" for one in place], "group": sex, "age": age, "crp": crp, "ward": codes}
    return labelled(rng, logit - 0.5 * (sex == "M") - np.linspace(-1, 1.2, 7)[place], columns)


def states(rng: Rng, rows: int) -> pd.DataFrame:
    """51 states, the largest 300 times the smallest, with own shares of the groups; occupations are numbers."""
    sizes = np.geomspace(200, 60_000, 51)
    state = rng.choice(51, rows, p=sizes / sizes.sum())
    black, work = rng.random(rows) < share(-2 + 1.5 * np.sin(state)), rng.integers(0, 22, rows)
    school, age = np.clip(rng.normal(12.5 - 0.8 * black, 2.6), 1, 20).round(), rng.integers(18, 80, rows)
    logit = -1.2 + 0.33 * (school - 12.5) - 0.0025 * (age - 48) ** 2 + effects(5, 22, 0.9)[work] - 0.5 * black
    columns = {"group": np.where(black, "Black", "White"), "school": school, "age": age, "work": work * 10 + 3}
    return labelled(rng, logit + 0.3 * np.cos(2 * state), {"owner": [f"S{one:02d}" for one in state]} | columns)


def branches(rng: Rng, rows: int) -> pd.DataFrame:
    """A bank's eight branches, one with women only; incomes and debts with long tails, -999 for unknown ages."""
    branch = rng.integers(0, 8, rows)
    sex = np.where((branch == 3) | (rng.random(rows) < 0.45), "f", "m")
    income, debt = np.exp(rng.normal(10.3 + 0.25 * (sex == "m"), 1.1)), np.exp(rng.normal(9, 1.6, rows))
    age, late = rng.integers(19, 85, rows), rng.poisson(0.7, rows)
    logit = 0.4 + np.log(income) - 10.3 - 0.55 * (np.log(debt) - 9) - 0.8 * late + 0.02 * (age - 50)
    columns = {"owner": branch + 101, "group": sex, "income": income.round(2), "debt": debt.round(2), "currency": "EUR"}
    known = np.where(rng.random(rows) < 0.08, -999, age)
    return labelled(rng, logit + 0.15 * (branch - 3.5), columns | {"age": known, "late": late})


def rare(rng: Rng, rows: int) -> pd.DataFrame:
    """One row in 200 is favourable."""
    area, x = pick(rng, rows, urban=70, rural=30), rng.normal(size=(rows, 6))
    logit = -8 + 1.6 * x[:, 0] + 1.2 * x[:, 1] + 0.8 * x[:, 2] * x[:, 3] + 0.7 * (area == "urban")
    return labelled(rng, logit, {"group": area} | {f"x{number}": x[:, number] for number in range(6)})


def frequent(rng: Rng, rows: int) -> pd.DataFrame:
    """94 % are favourable; four groups, one of which has one row in a hundred."""
    group, x = pick(rng, rows, A=50, B=34, C=15, D=1), rng.normal(size=(rows, 5))
    own = pd.Series(group).map({"A": 0, "B": 0.3, "C": -0.5, "D": -0.9}).to_numpy(dtype=float)
    logit = 3.9 + x[:, 0] + 0.8 * x[:, 1] - 0.6 * np.abs(x[:, 2]) + own
    return labelled(rng, logit, {"group": group} | {f"x{number}": x[:, number] for number in range(5)})


def crossed(rng: Rng, rows: int) -> pd.DataFrame:
    """Race (a number, a tenth unknown) crossed with sex; three sites."""
    race, sex = rng.choice([1, 2, 3], rows, p=[0.6, 0.3, 0.1]), pick(rng, rows, F=1, M=1)
    site, x, kind = pick(rng, rows, north=5, south=3, west=2), rng.normal(size=(rows, 4)), rng.integers(0, 6, rows)
    logit = -0.3 + x @ [0.9, -0.7, 0.4, 0] + effects(2, 6, 0.8)[kind] - 0.5 * (race == 2) - 0.9 * (race == 3)
    known = pd.array(np.where(rng.random(rows) < 0.1, -1, race), dtype="Int64")
    known[known == -1] = pd.NA
    columns = {"owner": site, "race": known, "sex": sex, "kind": [f"k{one}" for one in kind]}
    logit = logit + 0.6 * (sex == "M") + 0.5 * (site == "north")
    return labelled(rng, logit, columns | {f"x{number}": x[:, number] for number in range(4)})


def reversed_gaps(rng: Rng, rows: int) -> pd.DataFrame:
    """The group that is ahead at one site is behind at the next (Simpson)."""
    site, group = pick(rng, rows, east=45, west=40, centre=15), pick(rng, rows, minority=4, majority=6)
    x = rng.normal(size=(rows, 5)) + 0.3 * (group == "minority")[:, None]
    ahead = pd.Series(site).map({"east": 1.2, "west": -1.2, "centre": 0}).to_numpy(dtype=float)
    logit = x @ [1, 0.6, -0.5, 0.3, 0] + ahead * np.where(group == "minority", 1, -1)
    return labelled(rng, logit, {"owner": site, "group": group} | {f"x{number}": x[:, number] for number in range(5)})


def wide(rng: Rng, rows: int) -> pd.DataFrame:
    """300 columns of 0 and 1, few rows."""
    base = np.random.default_rng(3).beta(0.6, 4, 300)
    x = (rng.random((rows, 300)) < base).astype(int)
    sex = np.where(rng.random(rows) < share(-0.2 + 1.5 * x[:, 0] - x[:, 1]), "m", "f")
    weights = effects(4, 300, 0.65) * (np.random.default_rng(6).random(300) < 0.3)
    return labelled(rng, (x - base) @ weights + 0.5 * (sex == "m"), {"group": sex} | dict(enumerate_columns("d", x)))


def enumerate_columns(letter: str, x: NDArray[Any]) -> list[tuple[str, Any]]:
    """Columns with a name each."""
    return [(f"{letter}{number:03d}", x[:, number]) for number in range(x.shape[1])]


def three_labels(rng: Rng, rows: int) -> pd.DataFrame:
    """Approved, review or rejected; three groups of ages; an id, a date and a remark beside the features."""
    band, x = pick(rng, rows, young=2, middle=6, old=2), rng.normal(size=(rows, 4))
    gains = np.stack([0.8 * x[:, 0] + 0.5 * x[:, 1] + 0.4 * (band == "middle"), 0.3 * x[:, 2] - 0.2,
                      0.6 * x[:, 3] * x[:, 1] - 0.7 * x[:, 0]], 1)  # fmt: skip
    label = np.array(["good", "review", "bad"], dtype=object)[(1.5 * gains + rng.gumbel(size=(rows, 3))).argmax(1)]
    beside = {"id": [f"A{one:09d}" for one in rng.permutation(10 * rows)[:rows]],
              "on": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D"),
              "remark": [f"called {one} times" for one in rng.permutation(rows)]}  # fmt: skip
    return pd.DataFrame({"group": band, **dict(enumerate_columns("x", x)), **beside, "outcome": label})


def shifted(rng: Rng, rows: int) -> pd.DataFrame:
    """Twelve clinics whose patients differ; the outcome is no linear function of the features."""
    clinic = rng.integers(0, 12, rows)
    x = rng.normal(size=(rows, 8)) + ((clinic - 5.5) / 12)[:, None] * np.array([4, -3, 0, 0, 0, 0, 0, 0])
    cover = np.where(rng.random(rows) < share((clinic - 5.5) / 3), "insured", "uninsured")
    logit = 1.5 * np.sin(1.5 * x[:, 0]) + (x[:, 1] > 0.5) + 0.7 * x[:, 2] * x[:, 3] + 0.5 * (cover == "insured") - 0.5
    names = dict(enumerate_columns("lab", (200 + 50 * x).round(1)))
    return labelled(rng, logit, {"owner": [f"clinic {one + 1}" for one in clinic], "group": cover} | names)


def coded(rng: Rng, rows: int) -> pd.DataFrame:
    """Groups, jobs and postcodes are numbers; four groups."""
    place, job, group = (
        rng.integers(0, 60, rows),
        rng.integers(0, 30, rows),
        rng.choice([1, 2, 5, 9], rows, p=[0.55, 0.25, 0.15, 0.05]),
    )
    income = np.exp(rng.normal(10.5, 0.7, rows)).astype(int)
    logit = 1.1 * (np.log(income) - 10.5) + effects(9, 60, 0.8)[place] + effects(10, 30, 0.9)[job] - 0.5 * (group == 2)
    return labelled(rng, logit, {"group": group, "postcode": 10_000 + 997 * place, "job": job, "income": income})


def doubled(rng: Rng, rows: int) -> pd.DataFrame:
    """Four units; in the table, not in the fresh rows, a fifth of the people is on file at two units."""
    unit, sex, x = rng.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1]), pick(rng, rows, f=1, m=1), rng.normal(size=(rows, 4))
    columns = {"owner": [f"unit {one}" for one in unit], "group": sex} | dict(enumerate_columns("x", x))
    frame = labelled(rng, x @ [1, 0.5, -0.5, 0.2] + 0.6 * (sex == "m") - 0.3, columns)
    if rows == FRESH:
        return frame
    again = frame.iloc[: rows // 6].assign(owner=[f"unit {(one + 1) % 4}" for one in unit[: rows // 6]])
    return pd.concat([frame.iloc[: rows - len(again)], again], ignore_index=True)


def few(rng: Rng, rows: int) -> pd.DataFrame:
    """Three clinics and 900 rows."""
    sex, clinic, x = pick(rng, rows, f=35, m=65), pick(rng, rows, c1=5, c2=3, c3=2), rng.normal(size=(rows, 6))
    logit = 1.3 * x[:, 0] - 0.9 * x[:, 1] + 0.6 * x[:, 2] + 0.5 * (sex == "m") - 0.2
    return labelled(rng, logit, {"owner": clinic, "group": sex} | dict(enumerate_columns("t", x)))


def customers(rng: Rng, rows: int) -> pd.DataFrame:
    """Ten banks of unequal size; wealth, spending and transactions with very long tails."""
    sizes = np.geomspace(1, 20, 10)
    bank, sex = rng.choice(10, rows, p=sizes / sizes.sum()), pick(rng, rows, f=45, m=55)
    wealth, spent = np.exp(rng.normal(9 + 0.3 * (sex == "m") + 0.1 * (bank - 5), 1.8)), np.exp(rng.normal(5, 1.3, rows))
    bought, age, channel = rng.negative_binomial(0.4, 0.02, rows), rng.integers(18, 90, rows), rng.integers(0, 6, rows)
    logit = 0.9 + 0.5 * (np.log(wealth) - 9) - 0.5 * np.log1p(bought) + 0.5 * (np.log(spent) - 5)
    logit = logit - 0.001 * (age - 50) ** 2 + effects(58, 6, 0.6)[channel]
    columns = {"owner": [f"bank {one}" for one in bank], "group": sex, "wealth": wealth.round(2), "bought": bought}
    return labelled(rng, logit, columns | {"spent": spent.round(2), "age": age, "channel": [f"c{a}" for a in channel]})


def undisclosed(rng: Rng, rows: int) -> pd.DataFrame:
    """Seven sites and three groups; a fifth of the people do not say which is theirs."""
    group, x = pick(rng, rows, a=5, b=3, c=2), rng.normal(size=(rows, 6))
    site, kind = rng.integers(0, 7, rows), rng.integers(0, 10, rows)
    logit = x @ [1, 0.6, -0.5, 0.3, 0, 0] + 0.7 * x[:, 4] * (group == "a") + effects(54, 10, 0.6)[kind]
    told = np.where(rng.random(rows) < 0.2, None, group)
    columns = {"owner": [f"s{one}" for one in site], "group": told, "kind": [f"k{one}" for one in kind]}
    return labelled(rng, logit - 0.4 * (group == "c"), columns | dict(enumerate_columns("x", x)))


def tiny(rng: Rng, rows: int) -> pd.DataFrame:
    """Three sites and 400 rows, of which 40 are held out."""
    sex, x, kind = pick(rng, rows, f=4, m=6), rng.normal(size=(rows, 8)), rng.integers(0, 5, rows)
    logit = 1.2 * (x @ [1, -0.8, 0.5, 0.3, 0, 0, 0, 0]) + effects(35, 5, 0.6)[kind] + 0.4 * (sex == "m")
    columns = {"owner": [f"s{one}" for one in rng.integers(0, 3, rows)], "group": sex, "k": [f"k{one}" for one in kind]}
    return labelled(rng, logit, columns | dict(enumerate_columns("x", x)))


@dataclass(frozen=True)
class Unseen:
    """A table: how it is drawn, how many rows the user has, and what the user says about its columns."""

    draw: Callable[[Rng, int], pd.DataFrame]
    rows: int
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return str(self.said.get("group", "group"))


TABLES = {
    "hospitals": Unseen(hospitals, 12_000, {"owner": "owner"}),
    "states": Unseen(states, 30_000, {"owner": "owner", "data_settings": {"categorical": ("work",)}}),
    "branches": Unseen(branches, 12_000, {"owner": "owner"}),
    "rare": Unseen(rare, 12_000),
    "frequent": Unseen(frequent, 6_000),
    "crossed": Unseen(crossed, 12_000, {"owner": "owner", "group": "race,sex"}),
    "reversed": Unseen(reversed_gaps, 10_000, {"owner": "owner"}),
    "wide": Unseen(wide, 2_000),
    "three labels": Unseen(three_labels, 9_000, {"data_settings": {"drop": ("id", "on", "remark")}}),
    "shifted": Unseen(shifted, 12_000, {"owner": "owner"}),
    "coded": Unseen(coded, 10_000, {"data_settings": {"categorical": ("postcode", "job")}}),
    "doubled": Unseen(doubled, 8_000, {"owner": "owner"}),
    "few": Unseen(few, 900, {"owner": "owner"}),
    "customers": Unseen(customers, 9_000, {"owner": "owner"}),
    "undisclosed": Unseen(undisclosed, 1_200, {"owner": "owner"}),
    "tiny": Unseen(tiny, 400, {"owner": "owner"}),
}
