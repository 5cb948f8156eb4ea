"""Fairness targets on awkward tables whose truth is known: `python benchmarks/unseen_tables.py [TABLE ...] [--write]`.

Each table is drawn from a distribution; answers to its targets are judged on fresh rows of the same distribution: does
a verdict hold there, and how far is the model's accuracy from that of central models whose thresholds are fitted to
the fresh rows themselves, which no method may do? `--write` writes docs/results/unseen-tables.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import ffalm
from ffalm.algorithms import Lagrangian
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import scores_of
from ffalm.targets.repair import Repair, fit
from ffalm.targets.target import Target

PAGE = Path(__file__).parent.parent / "docs" / "results" / "unseen-tables.md"
FRESH = 100_000
FIRST = "dpd <= 0.05"
TARGETS = (FIRST, "dpd <= 0.02", "dpd <= 0.1", "eod <= 0.05", "eod <= 0.1", "equalized_odds <= 0.1",
           "accuracy_parity <= 0.05", "impact_ratio >= 0.8", "dpd <= 0.1, eod <= 0.1")  # fmt: skip
REPAIRS = ("groups", "single")
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


@dataclass(frozen=True)
class Judged:
    """One answer: what it says of test rows, and what is true of fresh ones."""

    target: str
    repair: str
    label: str
    kind: str
    verdict: str
    degenerate: bool
    test: dict[str, float]
    truth: dict[str, float]

    @property
    def holds(self) -> bool:
        return Target.parse(self.target).meets(self.truth)


@dataclass(frozen=True)
class Found:
    """Everything about one table."""

    table: str
    rows: int
    clients: int
    rate: float
    plain: float  # accuracy of FedAvg at the rate 0.05 on fresh rows
    references: dict[str, float]  # accuracy of central models on fresh rows with thresholds fitted to these
    answers: list[Judged]


def histogram(
    proba: NDArray[np.float64], labels: NDArray[np.int64], groups: NDArray[np.int64], excluded: int
) -> ScoreHistogram:
    """Of probabilities, the favourable label last; the last `excluded` groups are not compared."""
    count, logits = proba.shape[1], torch.from_numpy(np.log(np.clip(proba, 1e-12, 1)))
    scores, fallback = scores_of(logits, count - 1)
    shape = (count, int(groups.max()) + 1)
    found = ScoreHistogram.of(scores, fallback, torch.from_numpy(labels), torch.from_numpy(groups), shape, count - 1)
    return ScoreHistogram(found.counts, found.favourable, found.as_trained, excluded)


def codes_of(fresh: pd.DataFrame, table: Unseen, task: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels and groups of fresh rows as numbers of the task; a row whose group is unknown is in the last one."""
    parts = [fresh[name].astype("string") for name in table.group.split(",")]
    named = parts[0] if len(parts) == 1 else parts[0].str.cat(parts[1], sep=", ")
    place = {name: number for number, name in enumerate(task.group_names)}
    groups = named.map(lambda one: place.get(one, task.groups - 1), na_action=None).to_numpy(dtype=np.int64)
    labels = fresh["outcome"].map({name: number for number, name in enumerate(task.label_names)})
    return labels.to_numpy(dtype=np.int64), groups


def references(frame: pd.DataFrame, fresh: pd.DataFrame, table: Unseen, task: Any) -> dict[str, float]:
    """Central models trained on all rows of the table, their group thresholds fitted to the fresh rows."""
    settings = table.said.get("data_settings", {})
    out = ["outcome", *settings.get("drop", ()), *([table.said["owner"]] if "owner" in table.said else [])]
    codes = {*settings.get("categorical", ()), *table.group.split(",")}
    x, new = frame.drop(columns=out), fresh.drop(columns=out)
    texts = [name for name in x if name in codes or not pd.api.types.is_numeric_dtype(x[name])]
    x[texts], new[texts] = x[texts].astype("string").fillna("?"), new[texts].astype("string").fillna("?")
    numbers = [name for name in x if name not in texts]
    hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    models = {
        "logistic": (StandardScaler(), LogisticRegression(max_iter=2000)),
        "boosted": (
            "passthrough",
            HistGradientBoostingClassifier(max_iter=150, learning_rate=0.06, max_leaf_nodes=15, early_stopping=False),
        ),
    }
    labels, groups = codes_of(fresh, table, task)
    found = {}
    for name, (scaling, model) in models.items():
        encoding = ColumnTransformer([("numbers", scaling, numbers), ("texts", hot, texts)])
        fitted = make_pipeline(encoding, model).fit(x, frame["outcome"])
        order = [list(fitted.classes_).index(one) for one in task.label_names]
        scores = histogram(fitted.predict_proba(new)[:, order], labels, groups, task.excluded)
        repair = fit(scores, Target.parse(FIRST), "groups", None, 0.5)
        found[name] = float("nan") if repair is None else repair.tally(scores).metrics(scores.favourable)["accuracy"]
    return found


def examined(name: str, seed: int = 0) -> Found:
    """Answers to all targets on one draw of a table, by two candidates and one seed, and what is true of them."""
    table = TABLES[name]
    frame = table.draw(np.random.default_rng([seed, 1]), table.rows)
    fresh = table.draw(np.random.default_rng([seed, 2]), FRESH)
    said = {"label": "outcome", "group": table.group, "favourable": "good"} | table.said
    beside = said.pop("data_settings", {})
    federation = ffalm.load(frame, **said, **beside)
    candidates = {"fedavg": "fedavg", "lagrangian": Lagrangian(constraint="dp", tolerance=0.025)}
    study = ffalm.compare(frame, candidates, seeds=1, target=FIRST, data_settings=beside, **said)
    labels, groups = codes_of(fresh, table, federation.task)
    scores = {run.place: histogram(ffalm.load_model(study.folder / run.place).predict_proba(fresh), labels, groups,
                                   federation.task.excluded) for run in study.results}  # fmt: skip
    answers = []
    for target, repair in ((target, repair) for target in TARGETS for repair in REPAIRS):
        answer = study.answer(target, repair=repair)
        tally = Repair.from_plain(answer.best.repair).tally(scores[answer.best.run])
        told = (answer.chosen.label, answer.chosen.kind, answer.verdict, bool(answer.degenerate), answer.test)
        answers.append(Judged(target, repair, *told, tally.metrics(federation.task.favourable)))
    usual = ffalm.simulate("fedavg", federation, seed=0)
    plain = float((np.asarray(usual.predict(fresh)) == fresh["outcome"].to_numpy()).mean())
    rate = float(study.outcome.choices["training: lr"])
    central = references(frame, fresh, table, federation.task)
    return Found(name, table.rows, len(federation.clients), rate, plain, central, answers)


def page(found: list[Found], draw: int) -> str:
    """The results as Markdown."""
    every = [(one.table, answer) for one in found for answer in one.answers if not answer.degenerate]
    degenerate = sum(answer.degenerate for one in found for answer in one.answers)
    targets = ", ".join(f"`{one}`" for one in TARGETS)
    judged = {
        verdict: [answer.holds for _, answer in every if answer.verdict == verdict]
        for verdict in ("met with confidence", "met in the sample", "not met")
    }
    sure, sample = (f"{sum(held)} of {len(held)}" for held in list(judged.values())[:2])
    firsts = [next(one for one in each.answers if (one.target, one.repair) == (FIRST, "groups")) for each in found]
    near = sum(
        max(each.references.values()) - first.truth["accuracy"] < 0.01
        for each, first in zip(found, firsts, strict=True)
    )
    lines = [
        "# Tables whose truth is known",
        "Are the verdicts of a fairness target true, and are its answers accurate? Tables are drawn from made-up",
        "distributions, awkward in different ways, and each answer is judged on 100,000 fresh rows of the",
        "same distribution.",
        "",
        f"**In short.** *Met with confidence* was right in {sure} answers, *met in the sample* in {sample}.",
        f"On {near} of",
        f"{len(found)} tables the answer to `{FIRST}` is within a point of the accuracy of a central model",
        "whose thresholds",
        "are fitted to the fresh rows.",
        "",
        "`benchmarks/unseen_tables.py` draws each table once, asks for the answers, and writes this page.",
        "Candidates are",
        f"FedAvg and a Lagrangian (DP ≤ 0.025), with one seed and default settings of version {ffalm.__version__}.",
        "",
        "**What was chosen after looking.** The rule that chooses the learning rate was made while looking",
        "at draw 0 of",
        f"these tables, fresh rows included; this page is of draw {draw}: other rows of the same",
        "distributions. The rules for",
        "long tails and for training rows were made while looking at draws 0 to 2 of `tiny` and `few`, draw",
        "0 of `branches`",
        "and other tables, and confirmed on draw 0 of `customers` and draws 0 and 1 of `undisclosed`.",
        "",
        "<!-- not run: takes some minutes -->",
        "```bash",
        f"python benchmarks/unseen_tables.py --draw {draw} --write",
        "```",
        "",
        "## Are verdicts true?",
        f"There are {len(every)} answers, to {len(TARGETS)} targets ({targets}),",
        f"each with thresholds by group and with one threshold, on {len(found)} tables. {degenerate} answers",
        "whose models",
        "were called degenerate are left out. Answers on one table share its rows, so they are not independent.",
        "",
        "| verdict on test rows | answers | target holds on fresh rows |",
        "| --- | ---: | ---: |",
    ]
    for verdict, held in judged.items():
        lines.append(f"| {verdict} | {len(held)} | {sum(held)} ({sum(held) / max(1, len(held)):.0%}) |")
    wrong = [(name, answer) for name, answer in every if answer.verdict == "met with confidence" and not answer.holds]
    lines += ["", "*Met with confidence* promises 95 %." + (" These answers were wrong:" if wrong else "")]
    table = ["", "| table | target | repair | on test rows | on fresh rows |", "| --- | --- | --- | ---: | ---: |"]
    for name, answer in wrong:
        told = [
            ", ".join(f"{bound.metric} {part[bound.metric]:.3f}" for bound in Target.parse(answer.target).bounds)
            for part in (answer.test, answer.truth)
        ]
        table.append(f"| {name} | `{answer.target}` | {answer.repair} | {told[0]} | {told[1]} |")
    lines += table if wrong else []
    lines += [
        "",
        f"## Accuracy of the answer to `{FIRST}`",
        "In percent of fresh rows. `logistic` and `boosted` are central models, which have an advantage that",
        "no method can",
        "have: they saw all rows of the table in one place, test rows included, and their thresholds by",
        "group are fitted to",
        "the fresh rows themselves. `FedAvg at 0.05` is FedAvg as trained, without a target, at the learning rate that",
        "every table had before rates were chosen on held-out rows.",
        "",
        "| table | rows | clients | lr | verdict | DPD | accuracy | logistic | boosted | FedAvg at 0.05 |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one, first in zip(found, firsts, strict=True):
        verdict = first.verdict + (" (degenerate)" if first.degenerate else "")
        figures = [first.truth["dpd"], first.truth["accuracy"], *one.references.values(), one.plain]
        shown = " | ".join(f"{100 * figure:.1f}" for figure in figures)
        lines.append(f"| {one.table} | {one.rows:,} | {one.clients} | {one.rate:g} | {verdict} | {shown} |")
    lines += [
        "",
        "Why answers are a point and more below a central model:",
        "",
        "- `wide` has 2,000 rows and 300 columns, which the network overfits. Trained centrally it does no",
        "  better (69.9 % as",
        "  trained, draw 0).",
        "- In `hospitals` each ward code is known to one hospital only, and averaging with models that never",
        "  saw the code may",
        "  cost accuracy: as trained, on draw 0, FedAvg has 70.8 %, the same network trained centrally 72.1.",
        "- `few`, `undisclosed` and `tiny` have only 400 to 1,200 rows.",
        "",
        "What each table is like:",
        "",
    ]
    lines += [f"- **{one.table}**: {(TABLES[one.table].draw.__doc__ or '').strip()}" for one in found]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Examine the tables named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help="names of tables; all if none is given")
    parser.add_argument("--folder", type=Path, help="keep the figures of each table here, and use those that are there")
    parser.add_argument("--draw", type=int, default=1, help="which draw of each table")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for name in options.tables or TABLES:
        kept = options.folder and options.folder / f"{name.replace(' ', '-')}.json"
        if kept and kept.exists():
            plain = json.loads(kept.read_text())
            found.append(Found(**plain | {"answers": [Judged(**one) for one in plain["answers"]]}))
            continue
        found.append(examined(name, options.draw))
        print(page(found[-1:], options.draw), flush=True)
        if kept:
            kept.write_text(json.dumps(asdict(found[-1])))
    if options.write:
        PAGE.write_text(page(found, options.draw), encoding="utf-8")


if __name__ == "__main__":
    main()
