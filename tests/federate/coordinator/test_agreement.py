"""One encoding and one task out of what the sites say, and precise words for what does not fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federate.makers import config, people

from ffalm.data.encoding import CategorySummary, NumericColumn, NumericSummary, TableEncoding, TableSummary
from ffalm.errors import PublicError, UserError
from ffalm.federate.coordinator.agreement import Agreement, agree, misfit
from ffalm.federate.description import ColumnKind, Description
from ffalm.federate.terms import SiteTerms

FEATURES = ["age", "hours", "job", "sex"]


def told(frame: pd.DataFrame, labels: tuple[str, ...] = ("no", "yes"), groups: Any = ("female", "male")) -> Description:
    columns = frame[[name for name in frame.columns if name != "loan"]]
    summary = TableSummary.of(columns)
    kinds: dict[str, ColumnKind] = {
        name: "numbers" if isinstance(column, NumericSummary) else "text" for name, column in summary.columns.items()
    }
    return Description("table", labels, tuple(groups), kinds, summary)


NORTH, SOUTH, WEST = (people(40 + 10 * seed, seed) for seed in range(3))


def three(**changed: Description) -> dict[str, Description]:
    return {"north": told(NORTH), "south": told(SOUTH), "west": told(WEST), **changed}


def test_the_encoding_is_that_of_all_rows_put_together() -> None:
    agreement, wrong = agree(config(), three())
    together = TableEncoding.of(TableSummary.of(pd.concat([NORTH, SOUTH, WEST])[FEATURES]))
    assert not wrong
    assert agreement.encoding is not None
    for mine, theirs in zip(agreement.encoding.columns, together.columns, strict=True):
        if isinstance(mine, NumericColumn):
            assert isinstance(theirs, NumericColumn)
            assert np.allclose([mine.mean, mine.scale], [theirs.mean, theirs.scale], rtol=1e-12)
        else:
            assert mine == theirs
    assert agreement.shape == (7,)
    assert agreement.task.label_names == ("no", "yes") and agreement.task.favourable == 1


@pytest.mark.parametrize("tail", [False, True])
def test_missing_numbers_are_encoded_as_in_a_simulation_that_fills_in_the_mean(tail: bool) -> None:
    draw = np.random.default_rng(0)
    parts = [one.assign(hours=np.exp(one["age"] / 3) if tail else one["hours"]) for one in (NORTH, SOUTH, WEST)]
    parts = [
        one.assign(hours=one["hours"].where(draw.random(len(one)) > share))
        for one, share in zip(parts, (0.3, 0.1, 0.05 if tail else 1.0), strict=True)
    ]
    described = [
        replace(told(one.drop(columns="hours")), columns=TableSummary.of_rows(one[FEATURES], None, gaps=True))
        for one in parts
    ]
    kinds: dict[str, ColumnKind] = {"age": "numbers", "hours": "numbers", "job": "text", "sex": "text"}
    sites = {name: replace(one, kinds=kinds) for name, one in zip(("north", "south", "west"), described, strict=True)}
    sent = {name: Description.from_json(one.to_json()) for name, one in sites.items()}
    agreement, wrong = agree(config(data={"missing": "mean"}), sent)
    whole = pd.concat(parts)[FEATURES]
    whole = whole.assign(hours=whole["hours"].fillna(whole["hours"].mean()))
    together = TableEncoding.of(TableSummary.of(whole), long_tails=True)
    mine, theirs = (one.columns[FEATURES.index("hours")] for one in (agreement.encoding, together) if one)
    assert not wrong and isinstance(mine, NumericColumn) and isinstance(theirs, NumericColumn)
    assert np.allclose([mine.mean, mine.scale], [theirs.mean, theirs.scale], rtol=1e-12)
    assert (mine.root is None) == (theirs.root is None) == (not tail)
    if mine.root and theirs.root:
        assert np.allclose(mine.root, theirs.root, rtol=1e-12)


def test_a_site_cannot_shrink_a_columns_spread_by_claiming_many_missing_numbers() -> None:
    liar = NumericSummary(10, 400.0, 17000.0, missing=10**9)
    rows = told(WEST)
    assert rows.columns is not None
    lie = replace(rows, columns=TableSummary({**rows.columns.columns, "age": liar}))
    agreement, _ = agree(config(data={"missing": "mean"}, rules={"max_share": 0.4}), three(west=lie))
    honest, _ = agree(config(), three())
    mine, theirs = (one.encoding.columns[0] for one in (agreement, honest) if one.encoding)
    assert isinstance(mine, NumericColumn) and isinstance(theirs, NumericColumn)
    assert mine.scale > 0.6 * theirs.scale


def test_long_tails_are_encoded_as_in_a_simulation() -> None:
    parts = [one.assign(hours=np.exp(one["age"] / 4)) for one in (NORTH, SOUTH, WEST)]
    agreement, _ = agree(config(), dict(zip(("north", "south", "west"), map(told, parts), strict=True)))
    together = TableEncoding.of(TableSummary.of(pd.concat(parts)[FEATURES]), long_tails=True)
    mine, theirs = (one.columns[FEATURES.index("hours")] for one in (agreement.encoding, together) if one)
    assert isinstance(mine, NumericColumn) and isinstance(theirs, NumericColumn)
    assert mine.root is not None and np.allclose(mine.root, theirs.root or (), rtol=1e-12)


def test_a_site_may_lack_a_group_or_a_label_that_others_have() -> None:
    sites = three(south=told(SOUTH, groups=("male",)), west=told(WEST, labels=("no",)))
    agreement, wrong = agree(config(), sites)
    assert not wrong
    assert agreement.task.group_names == ("female", "male")


def test_groups_are_the_union_in_natural_order_and_spellings_alike_are_one() -> None:
    several = ("10", "9", "Male", "other")
    sites = three(north=told(NORTH, groups=several), west=told(WEST, groups=("female", *several)))
    assert agree(config(), sites)[0].task.group_names == ("9", "10", "female", "Male", "other")
    pair = {"north": told(NORTH, groups=("Male", "other")), "south": told(SOUTH)}
    assert agree(config(("north", "south")), pair)[0].task.group_names == ("female", "Male", "other")
    apart = three(north=told(NORTH, groups=("a",)), south=told(SOUTH, groups=("b",)), west=told(WEST, groups=("c",)))
    assert agree(config(), apart)[0].task.group_names == ("a", "b", "c")


def test_a_group_that_only_one_of_three_sites_names_makes_that_site_a_misfit() -> None:
    agreement, wrong = agree(config(), three(west=told(WEST, groups=("female", "male", "third"))))
    assert agreement.task.group_names == ("female", "male")
    assert wrong == {"west": "The site 'west' has the group 'third'; the federation knows 'female', 'male'."}
    listed = config(data={"groups": ["female", "male", "third"]})
    assert not agree(listed, three(west=told(WEST, groups=("female", "male", "third"))))[1]


def test_a_crossing_that_only_one_of_three_sites_names_is_not_compared() -> None:
    crossed = config(data={"group": ["sex", "job"]})
    pair = ("female, nurse", "male, nurse")
    sites = {name: replace(one, groups=pair) for name, one in three().items()}
    sites["west"] = replace(sites["west"], groups=(*pair, "male, smith"))
    agreement, wrong = agree(crossed, sites)
    assert not wrong
    assert agreement.task.group_names == (*pair, "other") and agreement.task.excluded == 1


@pytest.mark.parametrize(
    ("count", "total", "squares"),
    [(10**400, 1.0, 1.0), (40, 10**400, 1.0), (40, 100.0, -1.0), (40, 100.0, 1.0), (-1, 0.0, 0.0), (40.5, 0.0, 0.0),
     (True, 0.0, 0.0), (40, "1", 1.0)],
)  # fmt: skip
def test_sums_that_no_numbers_have_are_refused(count: Any, total: Any, squares: Any) -> None:
    lie = TableSummary({"age": NumericSummary(count, total, squares)})
    one = Description("table", ("no", "yes"), ("a", "b"), {"age": "numbers"}, lie)
    with pytest.raises(UserError, match="cannot be read"):
        Description.from_json(one.to_json())


@pytest.mark.parametrize("deviations", [-1.0, 1.0, math.nan, "1", True])
def test_deviations_that_the_squares_would_tell_are_refused(deviations: Any) -> None:
    lie = TableSummary({"age": NumericSummary(40, 400.0, 4000.0, deviations=deviations)})
    one = Description("table", ("no", "yes"), ("a", "b"), {"age": "numbers"}, lie)
    with pytest.raises(UserError, match="cannot be read"):
        Description.from_json(one.to_json())
    right = TableSummary({"age": NumericSummary(40, 400.0, 4000.0, deviations=1e-4)})
    assert Description.from_json(replace(one, columns=right).to_json()).columns == right


def test_a_site_whose_sums_are_out_of_scale_is_a_misfit() -> None:
    columns = dict(told(WEST).columns.columns)  # type: ignore[union-attr]
    lie = replace(told(WEST), columns=TableSummary({**columns, "age": replace(columns["age"], squares=1e12)}))
    agreement, wrong = agree(config(), three(west=lie))
    assert "values in the column 'age' that are" in wrong["west"]
    assert agreement == agree(config(), {"north": told(NORTH), "south": told(SOUTH)})[0]
    assert "west" not in agree(config(rules={"outlier": 1e200}), three(west=lie))[1]


def test_a_site_that_claims_too_many_rows_has_no_more_than_its_share_in_means_and_spreads() -> None:
    columns = dict(told(WEST).columns.columns)  # type: ignore[union-attr]
    liar = NumericSummary(50 * 10**6, 50e6 * 90.0, 50e6 * 8200.0)
    lie = replace(told(WEST), columns=TableSummary({**columns, "age": liar}))
    plan = config(rules={"max_share": 0.4})
    encodings = [agree(plan, sites)[0].encoding for sites in (three(), three(west=lie))]
    honest, lied = ({column.name: column for column in one.columns}["age"] for one in encodings if one)
    assert isinstance(honest, NumericColumn) and isinstance(lied, NumericColumn)
    assert abs(lied.mean - honest.mean) < 0.45 * (90 - honest.mean)


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        (told(WEST.astype({"age": str})), "The site 'west' has the column 'age' as text, the others as numbers."),
        (told(WEST.assign(job=1)), "The site 'west' has the column 'job' as numbers, the others as text."),
        (told(WEST.drop(columns="hours")), "The site 'west' lacks the column 'hours', which the others have."),
        (
            told(WEST, labels=("maybe", "no")),
            "The site 'west' has the label 'maybe'; the federation knows 'no', 'yes'.",
        ),
        (
            told(WEST.assign(hours=1e200)),
            "The site 'west' has values in the column 'hours' that are too large to be standardised.",
        ),
        (Description("images", ("no", "yes"), ("a", "b"), size=64), "has data of the kind 'images'"),
        (Description("table", ("no", "yes"), ("a", "b")), "did not report which columns"),
    ],
)
def test_what_differs_is_named_and_the_others_agree_without_it(site: Description, sentence: str) -> None:
    agreement, wrong = agree(config(), three(west=site))
    assert list(wrong) == ["west"] and sentence in wrong["west"]
    without, none = agree(config(), {name: one for name, one in three().items() if name != "west"})
    assert agreement == without and not none


def test_everything_that_differs_is_named_at_once() -> None:
    site = told(WEST.drop(columns="hours").astype({"age": str}))
    _, wrong = agree(config(), three(west=site))
    assert "'hours'" in wrong["west"] and "'age'" in wrong["west"]


def test_a_column_that_only_one_site_has_does_no_harm() -> None:
    agreement, wrong = agree(config(), three(west=told(WEST.assign(ward=3))))
    assert not wrong
    assert agreement.encoding is not None
    assert {column.name for column in agreement.encoding.columns} == set(FEATURES)


def test_where_two_sites_differ_the_first_in_the_list_decides() -> None:
    sites = {"north": told(NORTH), "south": told(SOUTH.astype({"age": str}))}
    assert list(agree(config(("north", "south")), sites)[1]) == ["south"]
    assert list(agree(config(("south", "north")), sites)[1]) == ["north"]


def test_fixed_groups_and_labels_make_any_other_value_a_misfit() -> None:
    plan = config(data={"groups": ["male", "female"], "label_values": ["yes", "no"]})
    agreement, wrong = agree(plan, three(south=told(SOUTH, groups=("female", "other"))))
    assert agreement.task.group_names == ("male", "female")
    assert wrong == {"south": "The site 'south' has the group 'other'; the federation knows 'female', 'male'."}


@pytest.mark.parametrize(
    ("data", "sites", "sentence"),
    [
        ({"favourable": "maybe"}, three(), "no value of the label 'loan' 'maybe'"),
        ({}, {"north": told(NORTH, labels=("no",))}, "must have two values of the label 'loan', .* but have 'no'"),
        ({}, {"north": told(NORTH, groups=("male",))}, "only one group, 'male'"),
        (
            {},
            {"north": told(NORTH[["age"]]), "south": told(SOUTH[["job"]]), "west": told(WEST[["sex"]])},
            "no feature column in common",
        ),
    ],
)
def test_what_no_site_can_mend_is_told_to_the_coordinator(
    data: dict[str, Any], sites: dict[str, Description], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        agree(config(data=data), sites)


def test_without_a_favourable_value_labels_of_0_and_1_are_clear_and_others_are_not() -> None:
    open_ended = config()
    open_ended = replace(open_ended, data=replace(open_ended.data, favourable=None))
    numbers = {name: replace(one, labels=("0", "1")) for name, one in three().items()}
    assert agree(open_ended, numbers)[0].task.label_names == ("0", "1")
    with pytest.raises(UserError, match=r"set favourable in federation\.toml"):
        agree(open_ended, three())


def test_a_site_that_comes_later_must_fit_what_was_fixed_but_may_bring_new_categories() -> None:
    agreement, _ = agree(config(), three())
    assert misfit(agreement, "east", told(people(30, 9).assign(job="baker"))) == ""
    assert "lacks the column 'age'" in misfit(agreement, "east", told(people(30, 9).drop(columns="age")))
    assert "has the group 'other'" in misfit(agreement, "east", told(people(30, 9), groups=("other",)))


def test_images_must_have_the_agreed_size() -> None:
    plan = config(data={"source": "images", "size": 32})
    site = Description("images", ("no", "yes"), ("a", "b"), size=32)
    agreement, wrong = agree(plan, {"north": site, "south": replace(site, size=64)})
    assert agreement.shape == (3, 32, 32)
    assert wrong == {"south": "The site 'south' has images of 64 pixels, the federation uses 32."}


def test_an_agreement_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    agreement, _ = agree(config(), three())
    agreement.save(tmp_path / "encoding.json")
    assert Agreement.load(tmp_path / "encoding.json") == agreement
    (tmp_path / "encoding.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        Agreement.load(tmp_path / "encoding.json")


@pytest.mark.parametrize(
    "change",
    [
        {"groups": tuple(map(str, range(1001)))},
        {"labels": tuple(map(str, range(1001)))},
        {"kinds": {str(number): "text" for number in range(100_001)}},
        {"groups": ("a", "b" * 10_001)},
        {"columns": TableSummary({"job": CategorySummary({str(number): 10 for number in range(1002)})})},
    ],
)
def test_a_description_of_more_names_than_a_site_can_have_is_refused(change: dict[str, Any]) -> None:
    """Names are compared with each other: a million groups of one site kept the coordinator busy for a day."""
    honest = Description("table", ("no", "yes"), ("a", "b"), {"job": "text"})
    assert Description.from_json(honest.to_json()) == honest
    with pytest.raises(UserError, match="cannot be read"):
        Description.from_json(replace(honest, **change).to_json())


def test_terms_and_descriptions_survive_the_wire() -> None:
    agreement, _ = agree(config(), three())
    terms = agreement.terms("south", config())
    assert SiteTerms.from_text(terms.to_text()) == terms and terms.client == 1
    assert SiteTerms.from_text(terms.to_text()).key == terms.key != agreement.terms("west", config()).key
    assert Description.from_json(told(NORTH).to_json()) == told(NORTH)
    for sums in ('{"age": {"count": "7", "total": 1, "squares": 1}}', '{"job": {"counts": [["x", "y"]]}}'):
        with pytest.raises(UserError, match=r"column .* is invalid"):
            Description.from_json(
                json.dumps({"source": "table", "labels": [], "groups": [], "columns": sums, "size": 0})
            )
    for category, wrong in (("\x1b[2J", "has control characters"), ("x" * 10_001, "is too long")):
        job = json.dumps({"job": {"counts": [[category, 7]]}})
        with pytest.raises(UserError, match=f"a category of the column 'job' {wrong}"):
            Description.from_json(
                json.dumps({"source": "table", "labels": [], "groups": [], "columns": job, "size": 0})
            )
    with pytest.raises(UserError, match="model"):
        SiteTerms.from_text(json.dumps({**json.loads(terms.to_text()), "model": [1, 2]}))
    with pytest.raises(
        PublicError, match=r"by 'mine', an algorithm that this site does not know.*'plugins' in site.toml"
    ):
        SiteTerms.from_text(terms.to_text().replace('"name": "ffalm"', '"name": "mine"'))
    for reader in (SiteTerms.from_text, Description.from_json):
        with pytest.raises(UserError, match="cannot be read"):
            reader('{"source": 1}')
