"""Fairness targets on awkward tables whose truth is known: `python benchmarks/unseen_tables.py [TABLE ...] [--write]`.

Each table is drawn from a distribution; answers to its targets are judged on fresh rows of the same distribution: does
a verdict hold there, and how far is the model's accuracy from that of central models whose thresholds are fitted to
the fresh rows themselves, which no method may do? `--write` writes docs/results/unseen-tables.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from awkward_tables import FRESH, TABLES, Unseen
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from unseen_tables_page import FIRST, TARGETS, Found, Judged, page

import ffalm
from ffalm.algorithms import Lagrangian
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.histograms import scores_of
from ffalm.targets.repair import Repair, fit
from ffalm.targets.target import Target

PAGE = Path(__file__).parent.parent / "docs" / "results" / "unseen-tables.md"
REPAIRS = ("groups", "single")


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
