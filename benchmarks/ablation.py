"""The ablation of FFALM (docs/results/ablation.md): runs what is missing, applies the rule, writes tables and CSV.

    python benchmarks/ablation.py OUT --adult DIR                     # all variants, 4 conditions x 10 seeds
    python benchmarks/ablation.py OUT --adult DIR --utkface DIR       # then the finalists on UTKFace, on a GPU

It can be stopped and run again: finished runs in OUT are kept. `--census` tries it on generated rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ablation_rule
from ablation_rule import Scored

from ffalm.config import parse
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.reproduce.paper import STUDY
from ffalm.settings import merged
from ffalm.studies.study import begin

METHODS = {**ablation_rule.PLAINER, **ablation_rule.VARIANTS}
PARTITIONS = ("plain", "balanced")
ALPHAS = {"adult": (0.3, 5.0), "census": (0.3, 5.0), "utkface": (0.3,)}


def config_of(given: argparse.Namespace, data: str, partition: str, names: list[str]) -> dict[str, Any]:
    """The study of some methods on one data set and partition."""
    settings: dict[str, Any] = {
        "seeds": list(range(given.face_seeds if data == "utkface" else given.seeds)),
        "data": {"source": data, **({} if data == "census" else {"root": getattr(given, data)})},
        "partition": {"kind": partition, "alpha": list(ALPHAS[data])},
        "training": {"rounds": given.rounds},
        "algorithms": {name: METHODS[name] for name in names},
        "workers": given.workers,
        "checkpoint_every": 10,
        "target": "none",
    }
    if data == "utkface":
        faces = {"precision": given.precision, "channels_last": True, "fresh_data": True}
        settings = merged(merged(STUDY, faces), settings)
    return settings


def runs_of(given: argparse.Namespace, data: str, names: list[str]) -> list[Scored]:
    """All runs on a data set; those that the folder does not hold are computed."""
    found: list[Scored] = []
    for partition in PARTITIONS:
        config = parse(config_of(given, data, partition, names))
        with begin(config, given.out / f"{data}-{partition}", existing="share") as begun:
            print(f"{data}, {partition}: {len(begun.left)} runs to compute", flush=True)
            found += ablation_rule.scored(begun.compute(), data, partition)
    return found


def write(out: Path, name: str, runs: list[Scored]) -> None:
    """The rule's verdict, the tables and the runs."""
    judged = ablation_rule.verdicts(runs)
    pages = [to_markdown(ablation_rule.table(runs, judged, part)) for part in ("validation", "test")]
    told = [f"- {sentence}" for sentence in ablation_rule.findings(judged)]
    (out / f"{name}.md").write_text("\n\n".join(["\n".join(told), *pages]) + "\n")
    (out / f"{name}.csv").write_text(to_csv(ablation_rule.tidy(runs)))
    print("\n".join(told), f"Written: {out / name}.md and .csv", sep="\n", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--adult", help="folder of adult.data and adult.test")
    parser.add_argument("--utkface", help="folder of UTKFace; needs the results on Adult, which choose the finalists")
    parser.add_argument("--census", action="store_true", help="try it on generated rows instead")
    parser.add_argument("--only", help="methods, separated by commas, instead of all; FedAvg is always among them")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--face-seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=70)
    parser.add_argument("--workers", type=int, default=None, help="processes; by default one per core")
    parser.add_argument("--precision", default="bf16", help="of the runs on faces")
    given = parser.parse_args()
    names = list(METHODS) if given.only is None else list(dict.fromkeys([ablation_rule.BASE, *given.only.split(",")]))
    table = "census" if given.census else "adult"
    if table == "adult" and given.adult is None:
        parser.error("give the folder of Adult with --adult, or --census")
    runs = runs_of(given, table, names)
    write(given.out, f"ablation-{table}", runs)
    if given.utkface:
        last = [name for name in ablation_rule.finalists(ablation_rule.verdicts(runs)) if name in names]
        runs = [run for run in runs if run.label in last] + runs_of(given, "utkface", last)
        write(given.out, "ablation", runs)


if __name__ == "__main__":
    main()
