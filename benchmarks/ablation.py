"""The ablation of FFALM (docs/results/ablation.md): runs what is missing, applies the rule, writes tables and CSV.

    python -m benchmarks.ablation OUT --adult DIR                     # all variants, 4 conditions x 10 seeds
    python -m benchmarks.ablation OUT --adult DIR --utkface DIR       # then the finalists on UTKFace, on a GPU

    python -m benchmarks.ablation OUT --have docs/results/ablation.csv --utkface DIR    # only what the CSV file lacks

It can be stopped and run again: finished runs in OUT are kept. The tables and the CSV file are written after every
`--at-once` seeds of a condition. `--census` tries it on generated rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablation_rule import (
    BASE,
    PLAINER,
    VARIANTS,
    Scored,
    finalists,
    findings,
    from_csv,
    scored,
    table,
    tidy,
    verdicts,
)
from benchmarks.faces_board import shared_gpu

from ffalm.config import parse
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.reproduce.paper import STUDY
from ffalm.settings import merged
from ffalm.studies.study import begin

METHODS = {**PLAINER, **VARIANTS}
PARTITIONS = ("plain", "balanced")
ALPHAS = {"adult": (0.3, 5.0), "census": (0.3, 5.0), "utkface": (0.3,)}


@dataclass(frozen=True)
class Part:
    """Seeds of a data set and partition that lack the same methods, computed as one study."""

    data: str
    partition: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Names the partition, the number of methods and the seeds, as `utkface-plain-10-methods-seeds-3-4`."""
        seeds = "-".join(map(str, self.seeds))
        return f"{self.data}-{self.partition}-{len(self.methods)}-methods-seeds-{seeds}"


def missing_parts(
    data: str, methods: Sequence[str], seeds: Sequence[int], known: Sequence[Scored], at_once: int
) -> Iterator[Part]:
    """The runs that `known` lacks of these methods and seeds, in parts of up to `at_once` seeds, largest first."""
    present = {(run.condition, run.label, run.seed) for run in known}
    for partition in PARTITIONS:
        lacking: dict[tuple[str, ...], list[int]] = {}
        for seed in seeds:
            absent = tuple(
                label
                for label in methods
                if any(((data, partition, alpha), label, seed) not in present for alpha in ALPHAS[data])
            )
            if absent:
                lacking.setdefault(absent, []).append(seed)
        for absent, group in sorted(lacking.items(), key=lambda one: -len(one[0]) * len(one[1])):
            for first in range(0, len(group), at_once):
                yield Part(data, partition, tuple(group[first : first + at_once]), absent)


def config_of(given: argparse.Namespace, part: Part) -> dict[str, Any]:
    """The study of a part."""
    data = part.data
    settings: dict[str, Any] = {
        "seeds": list(part.seeds),
        "data": {"source": data, **({} if data == "census" else {"root": getattr(given, data)})},
        "partition": {"kind": part.partition, "alpha": list(ALPHAS[data])},
        "training": {"rounds": given.rounds},
        "algorithms": {name: METHODS[name] for name in part.methods},
        "workers": given.workers,
        "checkpoint_every": 10,
        "target": "none",
    }
    if data == "utkface":
        faces = {"precision": given.precision, "channels_last": True, "fresh_data": True}
        settings = merged(merged(STUDY, faces), settings)
    return settings


def merged_runs(known: Sequence[Scored], new: Sequence[Scored]) -> list[Scored]:
    """All runs, each once, by condition, method and seed; new ones replace known ones."""
    runs = {(run.condition, run.label, run.seed): run for run in (*known, *new)}
    conditions = list(dict.fromkeys(run.condition for run in (*known, *new)))
    methods = list(METHODS)
    return sorted(runs.values(), key=lambda run: (conditions.index(run.condition), methods.index(run.label), run.seed))


def completed(
    given: argparse.Namespace, data: str, names: Sequence[str], known: list[Scored], file: str
) -> list[Scored]:
    """The known runs and the missing ones of a data set; files are written after each part."""
    seeds = range(given.face_seeds if data == "utkface" else given.seeds)
    parts = list(missing_parts(data, names, seeds, known, given.at_once or len(seeds)))
    if parts and data != "census" and getattr(given, data) is None:
        raise SystemExit(f"Runs on {data} are missing: give its folder with --{data}.")
    for part in parts:
        print(f"{part.folder}: {len(part.seeds) * len(part.methods) * len(ALPHAS[data])} runs", flush=True)
        with begin(parse(config_of(given, part)), given.out / part.folder, existing="share") as begun:
            known = merged_runs(known, scored(begun.compute(), data, part.partition))
        write(given.out, file, known)
    return known


def write(out: Path, name: str, runs: Sequence[Scored]) -> None:
    """The rule's verdict, the tables and the runs."""
    judged = verdicts(runs)
    pages = [to_markdown(table(runs, judged, part)) for part in ("validation", "test")]
    sentences = "\n".join(f"- {sentence}" for sentence in findings(judged))
    (out / f"{name}.md").write_text("\n\n".join([sentences, *pages]) + "\n")
    (out / f"{name}.csv").write_text(to_csv(tidy(runs)))
    print(sentences, f"Written: {out / name}.md and .csv", sep="\n", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--adult", help="folder of adult.data and adult.test")
    parser.add_argument("--utkface", help="folder of UTKFace; needs the results on Adult, which choose the finalists")
    parser.add_argument("--census", action="store_true", help="try it on generated rows instead")
    parser.add_argument("--have", type=Path, help="CSV file of runs that are not computed again")
    parser.add_argument("--only", help="methods, separated by commas, instead of all; FedAvg is always among them")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--face-seeds", type=int, default=10)
    parser.add_argument("--at-once", type=int, help="seeds of a study; by default all")
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--workers", type=int, default=None, help="processes; by default one per core")
    parser.add_argument("--precision", default="bf16", help="of the runs on faces")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    names = list(METHODS) if given.only is None else list(dict.fromkeys([BASE, *given.only.split(",")]))
    known = [] if given.have is None else from_csv(given.have.read_text())
    first = "census" if given.census else "adult"
    runs = completed(given, first, names, known, f"ablation-{first}")
    if given.utkface:
        of_table = [run for run in runs if run.condition[0] == first]
        last = [name for name in finalists(verdicts(of_table)) if name in names]
        with shared_gpu():
            runs = completed(given, "utkface", last, runs, "ablation")
    write(given.out, "ablation", runs)


if __name__ == "__main__":
    main()
