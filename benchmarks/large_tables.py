"""Time and memory of large tables, from the file to rounds of FFALM: `python benchmarks/large_tables.py [--write]`.

Files are generated into a temporary folder and removed, or kept in `--folder`; the largest takes 3 GB. Each case runs
in a process of its own: the table is read, dealt to its silos, and trained on by the engine that `auto` chooses.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import torch
from pyarrow.csv import CSVWriter, WriteOptions
from pyarrow.parquet import ParquetWriter
from results import alone, machine, show
from tabular import model_of

import ffalm
from ffalm.algorithms import FFALM
from ffalm.engines import Job, Training
from ffalm.engines.choice import choose

PIECE = 200_000  # rows that are generated at a time
ACS = {"COW": 8, "MAR": 5, "OCCP": 400, "POBP": 200, "RELP": 18, "RAC1P": 9}


@dataclass(frozen=True)
class Case:
    """A generated table, how it is read, and what is trained on it."""

    about: str
    kind: str
    rows: int
    columns: int = 0
    ending: str = ".csv"
    model: str = "mlp"
    participation: float = 1.0
    rounds: int = 4
    most_data: int | None = None  # bytes of private memory that the process may take, as by `ulimit -d`
    settings: dict[str, Any] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True)
class Figures:
    """What a case needed; times are (wall, CPU), peaks are of resident memory, mapped files included."""

    size_mb: float
    features: int
    read: tuple[float, float]
    read_mb: float
    first: tuple[float, float]  # the first round, with the layout of all rows
    later: tuple[float, float]  # a round after it
    peak_mb: float
    engine: str


def acs_like(rows: int, columns: int, draw: np.random.Generator) -> dict[str, Any]:
    """Persons as in the American Community Survey: three numbers and seven codes, in 51 states."""
    codes = {name: 1 + (draw.random(rows) ** 2 * count).astype(int) for name, count in ACS.items()}
    age, school, hours = draw.integers(17, 95, rows), draw.integers(1, 25, rows), draw.integers(1, 99, rows)
    sex = draw.integers(1, 3, rows)
    score = 0.02 * age + 0.1 * school + 0.02 * hours - 0.3 * sex + draw.normal(size=rows)
    return {"AGEP": age, "SCHL": school, "WKHP": hours, **codes, "SEX": sex, "ST": silos(rows, draw),
            "label": (score > np.median(score)).astype(int)}  # fmt: skip


def wide(rows: int, columns: int, draw: np.random.Generator) -> dict[str, Any]:
    """Two thirds numbers, a third codes of 20 values as text; group and silo beside them."""
    numbers = {f"n{place}": draw.normal(size=rows).round(3) for place in range(columns - columns // 3)}
    texts = np.array([f"c{code}" for code in range(20)])
    codes = {f"t{place}": texts[draw.integers(0, 20, rows)] for place in range(columns // 3)}
    return {**numbers, **codes, **roles(rows, draw, numbers["n0"])}


def categories(rows: int, columns: int, draw: np.random.Generator) -> dict[str, Any]:
    """Codes of 1,000 values each."""
    codes = {f"c{place}": draw.integers(0, 1000, rows) for place in range(columns)}
    return {**codes, **roles(rows, draw, codes["c0"] - 500.0)}


def many_groups(rows: int, columns: int, draw: np.random.Generator) -> dict[str, Any]:
    """1,000 groups."""
    group = np.array([f"g{number}" for number in range(1000)])[draw.integers(0, 1000, rows)]
    return {**wide(rows, columns, draw), "SEX": group}


def many_silos(rows: int, columns: int, draw: np.random.Generator) -> dict[str, Any]:
    """10,000 silos."""
    return {**acs_like(rows, columns, draw), "ST": draw.integers(0, 10_000, rows)}


def roles(rows: int, draw: np.random.Generator, score: Any) -> dict[str, Any]:
    """Label, group and silo."""
    label = (score + draw.normal(size=rows) > 0).astype(int)
    return {"SEX": draw.integers(1, 3, rows), "ST": silos(rows, draw), "label": label}


def silos(rows: int, draw: np.random.Generator) -> Any:
    """One of 51, some ten times as large as others."""
    return 1 + (draw.random(rows) ** 1.5 * 51).astype(int)


KINDS: dict[str, Callable[[int, int, np.random.Generator], dict[str, Any]]] = {
    one.__name__: one for one in (acs_like, wide, categories, many_groups, many_silos)
}
CODES = {"categorical": (*ACS,)}
CASES = {
    "acs": Case("ACS-like, 51 silos", "acs_like", 1_600_000, settings=CODES),
    "wide-tenth": Case("1,000,000 rows x 50 columns, Parquet", "wide", 1_000_000, 50, ".parquet", "linear"),
    "wide": Case("10,000,000 rows x 50 columns, Parquet", "wide", 10_000_000, 50, ".parquet", "linear"),
    "wide-limited": Case(
        "10,000,000 rows x 50 columns, CSV, `ulimit -d` 3 GB", "wide", 10_000_000, 50,
        model="linear", rounds=2, most_data=3 * 10**9,
    ),
    "columns": Case("50,000 rows x 2,000 columns", "wide", 50_000, 2000),
    "categories": Case(
        "50,000 categories in 50 columns", "categories", 200_000, 50,
        settings={"categorical": tuple(f"c{place}" for place in range(50))},
    ),
    "groups": Case("1,000 groups", "many_groups", 500_000, 20),
    "clients": Case(
        "10,000 clients, 1 % take part", "many_silos", 1_000_000, participation=0.01, rounds=20, settings=CODES
    ),
}  # fmt: skip


def pieces(case: Case) -> Iterator[pd.DataFrame]:
    """The table in parts that fit in memory."""
    for first in range(0, case.rows, PIECE):
        rows = min(PIECE, case.rows - first)
        yield pd.DataFrame(KINDS[case.kind](rows, case.columns, np.random.default_rng(first)))


def write(case: Case, file: Path) -> None:
    """Generate the table's file, unless it is there."""
    if file.exists():
        return
    tables = (pyarrow.Table.from_pandas(piece, preserve_index=False) for piece in pieces(case))
    first = next(tables)
    plain = WriteOptions(quoting_style="needed")
    parquet = case.ending == ".parquet"
    with ParquetWriter(file, first.schema) if parquet else CSVWriter(file, first.schema, write_options=plain) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def measure(case: Case) -> Figures:
    """Read the file and train in this process."""
    torch.set_num_threads(1)
    if case.most_data is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (case.most_data, case.most_data))
    marks = [_now()]
    roles_of = {"label": "label", "group": "SEX", "favourable": 1, "owner": "ST", **case.settings}
    federation = ffalm.load(case.file, **roles_of)
    marks.append(_now())
    read_mb = _peak()
    features = int(federation.first_rows(1).x.shape[1])
    training = Training(rounds=case.rounds, participation=case.participation)
    job = Job.of(FFALM(), federation, lambda: model_of(case.model, features), training, 0, torch.device("cpu"))
    engine, _ = choose("auto", job)
    marks.append(_now())
    for _ in engine.train([job]):
        marks.append(_now())
    start, loaded, begun, first, *_, last = marks
    return Figures(
        Path(case.file).stat().st_size / 1e6, features, _between(start, loaded), read_mb, _between(begun, first),
        _between(first, last, case.rounds - 1), _peak(), type(engine).__name__.removesuffix("Engine").lower(),
    )  # fmt: skip


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _between(one: tuple[float, float], other: tuple[float, float], times: int = 1) -> tuple[float, float]:
    return (other[0] - one[0]) / times, (other[1] - one[1]) / times


def _peak() -> float:
    """Of this program alone: `ru_maxrss` would count what the process held that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Measure the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folder", type=Path, help="where files are generated and kept; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help="replace the table in RESULTS.md")
    asked = parser.parse_args()
    lines = [
        "| table | file MB | features | model | read: s (CPU s) | peak MB | round 1: s (CPU s) | a round: s (CPU s) "
        "| peak MB | engine |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for name in asked.cases:
            case = CASES[name]
            file = Path(asked.folder or folder) / f"{case.kind}-{case.rows}-{case.columns}{case.ending}"
            write(case, file)
            run = alone(measure, Case(**{**vars(case), "file": str(file)}))
            read, first, later = (f"{wall:.1f} ({cpu:.1f})" for wall, cpu in (run.read, run.first, run.later))
            lines.append(
                f"| {case.about} | {run.size_mb:,.0f} | {run.features:,} | {case.model} | {read} | {run.read_mb:,.0f} "
                f"| {first} | {later} | {run.peak_mb:,.0f} | {run.engine} |"
            )
            print(lines[-1], flush=True)
    about = (
        f"{machine()} `python benchmarks/large_tables.py`: FFALM, one seed, batches of 128, one thread as in "
        "`ffalm run`, each case in a process of its own. Peaks are of resident memory, mapped temporary files included."
    )
    show("Large tables", [about, "\n".join(lines)], asked.write)


if __name__ == "__main__":
    main()
