from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from ffalm.data.encoding import (
    CategoryColumn,
    CategorySummary,
    NumericColumn,
    NumericSummary,
    TableEncoding,
    TableSummary,
)
from ffalm.errors import UserError

AGES = [20, 40, 60, 80]


def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": AGES, "town": ["b", "a", None, "a"], "member": [True, False, True, True]})


def encoding_of(rows: pd.DataFrame) -> TableEncoding:
    return TableEncoding.of(TableSummary.of(rows))


def test_a_summary_holds_counts_and_sums_only() -> None:
    summary = TableSummary.of(frame())
    roots, root_squares = (sum(np.sqrt(np.sqrt(AGES)).tolist()), sum(np.sqrt(AGES).tolist()))
    assert summary.columns == {
        "age": NumericSummary(4, 200.0, 12000.0, roots, root_squares),
        "town": CategorySummary({None: 1, "b": 1, "a": 2}),
        "member": CategorySummary({"True": 3, "False": 1}),
    }


def test_numbers_are_standardised_and_categories_become_one_column_each() -> None:
    encoding = encoding_of(frame())
    assert encoding.features == ("age", "member=False", "member=True", "town=a", "town=b", "town=(missing)")
    scale = np.sqrt(500.0)  # mean 50, mean square 3000
    expected = [
        [-30 / scale, 0, 1, 0, 1, 0],
        [-10 / scale, 1, 0, 1, 0, 0],
        [10 / scale, 0, 1, 0, 0, 1],
        [30 / scale, 0, 1, 1, 0, 0],
    ]
    encoded = encoding.encode(frame())
    assert encoded.dtype == torch.float32
    torch.testing.assert_close(encoded, torch.tensor(expected, dtype=torch.float32))


LONG = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 16.0]  # mean 2.25, standard deviation 5.2; fourth roots 0, 1 and 2


def with_long_tails(rows: pd.DataFrame) -> TableEncoding:
    return TableEncoding.of(TableSummary.of(rows), long_tails=True)


def test_of_a_long_tail_the_fourth_roots_are_standardised_where_asked() -> None:
    rows = pd.DataFrame({"income": LONG})
    encoded = with_long_tails(rows).encode(rows).flatten()
    mean, scale = 0.5, np.sqrt(0.5)  # of 0 five times, 1 twice and 2: mean square 6/8
    torch.testing.assert_close(encoded[[0, 2, 7]], torch.tensor([(root - mean) / scale for root in (0, 1, 2)]).float())
    plain = encoding_of(rows).encode(rows).flatten()
    torch.testing.assert_close(plain, torch.tensor((np.array(LONG) - np.mean(LONG)) / np.std(LONG)).float())


@pytest.mark.parametrize("values", [AGES, [*LONG, -1.0], [0.0, 1.0] * 4], ids=["no tail", "negative", "two values"])
def test_other_numbers_are_standardised_as_they_are(values: list[float]) -> None:
    rows = pd.DataFrame({"income": values})
    assert with_long_tails(rows) == encoding_of(rows)


def test_a_negative_number_among_new_rows_has_the_root_of_its_size() -> None:
    encoding = with_long_tails(pd.DataFrame({"income": LONG}))
    below, zero, above = encoding.encode(pd.DataFrame({"income": [-16.0, 0.0, 16.0]})).flatten().tolist()
    assert zero - below == pytest.approx(above - zero)


def test_long_tails_are_found_in_sums_over_sites_and_survive_json() -> None:
    parts = [pd.DataFrame({"income": LONG[:6]}), pd.DataFrame({"income": LONG[6:]})]
    encoding = TableEncoding.of(TableSummary.of(parts[0]) + TableSummary.of(parts[1]), long_tails=True)
    assert encoding == with_long_tails(pd.concat(parts))
    assert TableEncoding.from_json(encoding.to_json()) == encoding
    assert "root" not in encoding_of(parts[0]).to_json()  # as earlier versions wrote it


def test_a_category_unseen_in_training_is_all_zeros() -> None:
    encoding = encoding_of(pd.DataFrame({"town": ["a", "b"]}))
    encoded = encoding.encode(pd.DataFrame({"town": ["c", None, "b"]}))
    assert encoded.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]


def test_numbers_and_truth_values_are_found_however_a_file_writes_them() -> None:
    texts = pd.DataFrame({"zip": ["01234", "10", "2.50"], "ill": ["TRUE", "FALSE", "TRUE"]})
    encoding = encoding_of(texts)
    read = pd.DataFrame({"zip": [1234, 10, 2.5], "ill": [True, False, True]})  # the same as pandas reads it from a file
    assert encoding.encode(read).equal(encoding.encode(texts))
    codes = encoding_of(read.astype(object))
    assert codes.encode(texts).equal(codes.encode(read))
    both = encoding_of(pd.DataFrame({"code": ["1", "01", "x"]}))  # different texts stay apart
    assert both.encode(pd.DataFrame({"code": ["1", "01", "001", "X"]})).sum(1).tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [0.0, 7.0, 0.1, -1e9, 1e150])
def test_a_constant_number_becomes_zero(value: float) -> None:
    encoding = encoding_of(pd.DataFrame({"x": [value] * 1001}))
    assert encoding.encode(pd.DataFrame({"x": [value, value + 5]})).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("given", "said"), [([7.0, np.nan], "1 missing or infinite value"), (["7", "abc"], "must hold numbers only")]
)
def test_a_constant_column_of_training_takes_numbers_alone(given: list[object], said: str) -> None:
    encoding = encoding_of(pd.DataFrame({"x": [7.0] * 9}))
    with pytest.raises(UserError, match=said):
        encoding.encode(pd.DataFrame({"x": given}))


def test_small_steps_on_a_large_number_are_not_taken_for_a_constant() -> None:
    years = pd.DataFrame({"year": np.tile([2000.0, 2001.0], 500)})
    torch.testing.assert_close(encoding_of(years).encode(years)[:2, 0], torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("base", [1e7, -1e9, 1.7e12])
def test_a_spread_that_is_small_beside_the_mean_is_not_lost(base: float) -> None:
    steps = np.random.default_rng(0).integers(0, 5, 1000)
    rows = pd.DataFrame({"x": base + steps})
    wanted = torch.tensor((steps - steps.mean()) / steps.std(), dtype=torch.float32)[:, None]
    torch.testing.assert_close(encoding_of(rows).encode(rows), wanted, rtol=1e-3, atol=1e-3)
    parts = [TableSummary.of(rows[:100]), TableSummary.of(rows[100:101]), TableSummary.of(rows[101:])]
    summed = TableSummary.from_json((parts[0] + parts[1] + parts[2]).to_json())
    torch.testing.assert_close(TableEncoding.of(summed).encode(rows), encoding_of(rows).encode(rows))


def test_columns_that_are_constant_at_each_site_differ_between_sites() -> None:
    rows = pd.DataFrame({"x": [1e9] * 60 + [1e9 + 1] * 40})
    summed = TableSummary.of(rows[:60]) + TableSummary.of(rows[60:])
    torch.testing.assert_close(TableEncoding.of(summed).encode(rows), encoding_of(rows).encode(rows))
    column = TableEncoding.of(summed).columns[0]
    assert isinstance(column, NumericColumn) and column.scale == pytest.approx(np.sqrt(0.24))
    wide = TableSummary.of(rows) + TableSummary.of(pd.DataFrame({"x": [0.0] * 100}))
    assert wide.columns["x"].deviations is None  # type: ignore[union-attr]


def test_missing_numbers_that_count_as_the_mean_keep_a_small_spread() -> None:
    told = TableSummary.of_rows(pd.DataFrame({"x": [1e9, 1e9 + 2, np.nan, np.nan]}), None, gaps=True)
    (column,) = TableEncoding.of(told).columns
    assert isinstance(column, NumericColumn) and column.scale == pytest.approx(np.sqrt(0.5))


def test_numbers_that_differ_in_their_last_bit_alone_are_a_constant() -> None:
    rows = pd.DataFrame({"x": [0.1 + 0.2, 0.3] * 50})
    assert not encoding_of(rows).encode(rows).any()


def test_sites_that_add_up_their_summaries_get_the_encoding_of_all_rows() -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"x": draw.normal(3, 2, 90), "n": draw.integers(0, 9, 90), "town": draw.choice(["a", "b", "c"], 90)}
    )
    rows.loc[80, "town"] = None
    first, second, third = rows[:20], rows[20:21], rows[21:]
    summed = TableSummary.of(first) + TableSummary.of(second) + TableSummary.of(third)
    torch.testing.assert_close(TableEncoding.of(summed).encode(rows), encoding_of(rows).encode(rows))
    back = TableSummary.of(third) + TableSummary.of(first) + TableSummary.of(second)
    assert TableEncoding.of(back).features == TableEncoding.of(summed).features


def test_columns_of_another_order_give_the_same_features() -> None:
    turned = frame()[["town", "member", "age"]]
    assert encoding_of(turned) == encoding_of(frame())
    assert torch.equal(encoding_of(frame()).encode(turned), encoding_of(turned).encode(frame()))


def test_an_encoding_and_a_summary_survive_json() -> None:
    summary = TableSummary.of(frame())
    assert TableSummary.from_json(summary.to_json()) == summary
    encoding = TableEncoding.of(summary)
    assert TableEncoding.from_json(encoding.to_json()) == encoding
    assert encoding.columns[0] == NumericColumn("age", 50.0, 500**0.5)
    assert encoding.columns[2] == CategoryColumn("town", ("a", "b", None))


def test_broken_json_is_told_in_one_sentence() -> None:
    with pytest.raises(UserError, match="table encoding is not valid JSON"):
        TableEncoding.from_json("{")
    for partial in ('{"columns": [{}]}', "[1]", '{"columns": [{"name": "age", "mean": "x", "scale": 1}]}',
                    '{"columns": [{"name": "age", "mean": 1, "scale": 1, "root": [1]}]}', '{"columns": ["name"]}',
                    '{"columns": [{"name": 1, "categories": []}]}', '{"columns": [{"name": "a", "categories": "bc"}]}',
                    '{"columns": [{"name": "a", "categories": ["b", 1]}]}'):  # fmt: skip
        with pytest.raises(UserError, match="table encoding is incomplete"):
            TableEncoding.from_json(partial)
    with pytest.raises(UserError, match="table summary is not valid JSON"):
        TableSummary.from_json("")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_missing_or_infinite_number_names_column_count_and_first_row(bad: float) -> None:
    rows = pd.DataFrame({"age": [1.0, 2.0, bad, bad]})
    with pytest.raises(UserError, match="'age' has 2 missing or infinite values, first in data row 3"):
        TableSummary.of(rows)
    with pytest.raises(UserError, match=r"first in data row 2: fill them in or leave those rows out"):
        encoding_of(pd.DataFrame({"age": [1.0, 2.0]})).encode(rows[1:3])


def test_tables_that_differ_do_not_add_up() -> None:
    with pytest.raises(UserError, match="differ in the columns age, height"):
        TableSummary.of(pd.DataFrame({"age": [1]})) + TableSummary.of(pd.DataFrame({"height": [1]}))
    with pytest.raises(UserError, match="'age' holds numbers in one table and text in another"):
        TableSummary.of(pd.DataFrame({"age": [1]})) + TableSummary.of(pd.DataFrame({"age": ["old"]}))


def test_a_table_to_encode_must_have_the_columns_of_the_encoding() -> None:
    encoding = encoding_of(pd.DataFrame({"age": [1, 2]}))
    with pytest.raises(UserError, match="lacks the column 'age'"):
        encoding.encode(pd.DataFrame({"Age": [1]}))
    with pytest.raises(UserError, match="'age' must hold numbers only"):
        encoding.encode(pd.DataFrame({"age": ["old"]}))
    with pytest.raises(UserError, match="'age' has 1 missing or infinite value"):
        encoding.encode(pd.DataFrame([{"age": None}]))
    assert encoding.encode(pd.DataFrame({"age": [1], "more": ["x"]})).shape == (1, 1)


def test_numbers_too_large_to_square_are_refused() -> None:
    with pytest.raises(UserError, match="'x' are too large"):
        encoding_of(pd.DataFrame({"x": [1e200, 2e200]}))


def test_lists_are_no_categories() -> None:
    with pytest.raises(UserError, match="'tags' holds lists"):
        TableSummary.of(pd.DataFrame({"tags": [[1], [2]]}))


@pytest.mark.parametrize("dtype", ["object", "str", "string", "category"])
def test_every_kind_of_text_column_is_encoded_alike(dtype: str) -> None:
    rows = pd.DataFrame({"town": pd.Series(["b", "a", None, "a"], dtype=dtype)})
    assert encoding_of(rows).encode(rows).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_nullable_numbers_are_numbers_and_their_gaps_are_missing() -> None:
    assert isinstance(
        TableSummary.of(pd.DataFrame({"n": pd.array([1, 2], dtype="Int64")})).columns["n"], NumericSummary
    )
    with pytest.raises(UserError, match="'n' has 1 missing"):
        TableSummary.of(pd.DataFrame({"n": pd.array([1, None], dtype="Int64")}))


def test_values_too_far_for_a_model_are_refused() -> None:
    encoding = TableEncoding((NumericColumn("age", 50.0, 10.0),))
    assert encoding.encode(pd.DataFrame({"age": [60.0]})).tolist() == [[1.0]]
    with pytest.raises(UserError, match="'age' has values too far"):
        encoding.encode(pd.DataFrame({"age": [60.0, 1e300]}))
