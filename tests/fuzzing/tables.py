"""Broken data files and odd data frames: each is loaded, or refused with one sentence."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.fuzzing import split_tables
from tests.fuzzing.outcomes import Outcome, outcome_of_call

import ffalm

_ROWS = 60
_CELLS = (
    "", " ", "nan", "inf", "-inf", "1e308", "-1e308", "1e400", "9" * 400, "1,5", '"', '"a\nb"', "\x00", "\u2603",
    "NULL", "0", "1", "true", "2020-01-01", "0x1f", "=1+1", "\ufeff", "x" * 5000, ";", "\t", "'", "None", "1_000",
)  # fmt: skip


def _text(draws: random.Random) -> str:
    rows = [[str(i % 7), "mf"[i % 2], str(i % 3 % 2), "xyz"[i % 3]] for i in range(_ROWS)]
    header = ["a", "sex", "paid", "shop"]
    for _ in range(draws.randrange(4)):
        line = draws.choice([*rows, header, header])
        line[draws.randrange(len(line))] = draws.choice(_CELLS)
    if draws.random() < 0.15:
        draws.choice(rows).append("more")
    if draws.random() < 0.15:
        draws.choice(rows).pop()
    column = draws.choice(_CELLS) if draws.random() < 0.2 else None
    for line in rows:
        line[0] = line[0] if column is None else column
    return "\n".join(draws.choice((",", ",", ",", ";", "\t")).join(line) for line in [header, *rows])


def _spoiled(draws: random.Random, content: bytes) -> bytes:
    kind = draws.randrange(8)
    place = draws.randrange(max(1, len(content)))
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + draws.randbytes(draws.randrange(1, 9)) + content[place:]
    if kind == 2:
        return content[:place] + bytes([draws.randrange(256)]) + content[place + 1 :]
    if kind == 3:
        return content.decode("utf-8", "replace").encode("utf-16")
    return content


def _file(draws: random.Random, here: Path) -> str:
    ending = draws.choice((".csv", ".csv", ".csv", ".tsv", ".csv.gz", ".parquet", ".txt", ".CSV"))
    content = _text(draws).encode("utf-8", "surrogatepass")
    if ending == ".parquet":
        written = io.BytesIO()
        _typed(draws, written)
        content = written.getvalue()
    if ending.endswith(".gz"):
        content = gzip.compress(content)
    path = here / f"fuzzed{ending}"
    path.write_bytes(_spoiled(draws, content))
    return str(path)


def _typed(draws: random.Random, written: io.BytesIO) -> None:
    """A Parquet file with a column of an odd type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.arange(_ROWS)
    texts = pa.array([f"x{i % 4}" for i in numbers])
    kinds: list[Callable[[], Any]] = [
        lambda: pa.array((numbers % 5).tolist(), pa.int64()).cast(pa.decimal128(22, 2)),
        lambda: pa.array(numbers, pa.uint64()),
        lambda: pa.array([[i, i] for i in numbers.tolist()]),
        lambda: pa.array([{"a": i} for i in numbers.tolist()]),
        lambda: pa.array(numbers, pa.timestamp("ns", "UTC")),
        lambda: pa.array(numbers.astype("int32"), pa.date32()),
        lambda: pa.array(numbers, pa.duration("s")),
        texts.dictionary_encode,
        lambda: texts.cast(pa.large_string()),
        lambda: pa.nulls(_ROWS),
        lambda: pa.array([b"x", None] * (_ROWS // 2), pa.binary()),
        lambda: pa.array([True, None] * (_ROWS // 2)),
        lambda: pa.array(numbers.astype("float16")),
        lambda: pa.array([float("nan"), 1.0] * (_ROWS // 2)),
        lambda: pa.array([None, 1] * (_ROWS // 2), pa.int8()),
        lambda: texts,
    ]
    columns = {
        "a": draws.choice(kinds)(),
        "sex": draws.choice(kinds)() if draws.random() < 0.3 else pa.array(["m", "f"] * (_ROWS // 2)),
        "paid": draws.choice(kinds)() if draws.random() < 0.3 else pa.array(numbers % 3 % 2),
        draws.choice(("shop", "b", "", "a.b")): draws.choice(kinds)(),
    }
    pq.write_table(pa.table(columns), written, compression=draws.choice(("snappy", "none", "zstd")))


def _column(draws: random.Random) -> Any:
    numbers = np.arange(_ROWS)
    kinds: list[Callable[[], Any]] = [
        lambda: numbers % 5,
        lambda: numbers / 3,
        lambda: np.where(numbers == 3, draws.choice([np.nan, np.inf, -np.inf, 1e308]), 1.0),
        lambda: np.where(numbers % 2, np.inf, -np.inf),
        lambda: np.full(_ROWS, draws.choice([0.0, np.nan, 1e308, 5e-324])),
        lambda: numbers.astype("complex"),
        lambda: numbers.astype("M8[D]"),
        lambda: numbers.astype("m8[s]"),
        lambda: pd.Series(numbers % 3).astype("category"),
        lambda: pd.Series(numbers, dtype="UInt64"),
        lambda: pd.array([1, None] * (_ROWS // 2), dtype="Int64"),
        lambda: [True, False] * (_ROWS // 2),
        lambda: [[1, 2]] * _ROWS,
        lambda: [{"a": 1}] * _ROWS,
        lambda: [None] * _ROWS,
        lambda: ["a", 1, None, 2.5] * (_ROWS // 4),
        lambda: [b"x", b"y"] * (_ROWS // 2),
        lambda: [10**30] * _ROWS,
        lambda: [f"id {i}" for i in range(_ROWS)],
        lambda: pd.interval_range(0, periods=_ROWS),
        lambda: pd.period_range("2020", periods=_ROWS, freq="D"),
        lambda: pd.arrays.SparseArray(numbers % 2),
    ]
    return draws.choice(kinds)()


def _frame(draws: random.Random) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"a": np.arange(_ROWS) % 7, "sex": ["m", "f"] * (_ROWS // 2), "paid": np.arange(_ROWS) % 3 % 2}
    )
    names: list[Any] = ["b", "self", "x\ny", "", "a", 3, None, ("a", 1), "sex", "paid"]
    for _ in range(draws.randrange(3)):
        name = draws.choice(names)
        frame[name] = _column(draws)
    return frame


def _audit(draws: random.Random, data: Any) -> Callable[[], object]:
    """Scores or predictions in the same files and frames."""
    asked: dict[str, Any] = draws.choice(
        ({"score": "a"}, {"prediction": "paid"}, {"prediction": "sex"}, {"score": "b"})
    )
    group = draws.choice(("sex", "sex", ["sex", "shop"], "b"))
    settings: dict[str, Any] = {"min_group": draws.choice((0, 5, 30)), "favourable": draws.choice((None, 1, "1", "m"))}

    def call() -> object:
        found = ffalm.audit(data, label="paid", group=group, **asked, **settings)
        metrics = [one.value for one in found.groupings[0].metrics.values()]
        assert all(value != value or abs(value) < 1e6 for value in metrics), "a metric that is no number"
        return found.to_dict()

    return call


def run(number: int, seed: int, here: Path) -> tuple[Outcome, str]:
    """One case by its number."""
    draws = random.Random(f"{seed}-{number}")
    if number % 8 == 7:
        return outcome_of_call(split_tables.call(draws, here)), "read whole, in pieces and from two files"
    settings: dict[str, Any] = {"label": "paid", "group": "sex", "clients": 2, "min_rows": 1}
    for name, values in {
        "favourable": (1, "1", "yes", 0, 1.0, True, "\n"),
        "owner": ("shop", "b", "x"),
        "missing": ("mean",),
        "drop": (["a"], ["a", "b"], ["x"], "a"),
        "categorical": (["a"], ["b"]),
        "groups": (["m", "f"], ["m"], [0, 1]),
        "against_rest": (["m"], ["x"]),
        "separator": (";", "\t", "ab", ""),
        "decimal": (",",),
        "encoding": ("latin-1", "utf-16", "utf-8", "rot13", "x", ""),
        "use_group_as_feature": (False,),
        "validation": (0.5, 0.0, 0.99),
    }.items():
        if draws.random() < (0.7 if name == "favourable" else 0.12):
            settings[name] = draws.choice(values)
    data: Any = _file(draws, here) if draws.random() < 0.6 else _frame(draws)
    if draws.random() < 0.2:
        return outcome_of_call(_audit(draws, data)), f"{type(data).__name__} audited"
    return outcome_of_call(lambda: repr(ffalm.load(data, **settings))), f"{type(data).__name__} with {settings}"
