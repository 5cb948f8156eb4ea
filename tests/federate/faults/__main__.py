"""Real federations under random faults: `python -m tests.federate.faults --faults 100 --seed 0`.

Each federation's report is kept in the output folder as it ends; the same command goes on after the last one kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.federate.faults import hosts
from tests.federate.faults.campaign import Report, deck, federation, table

MODULE = "tests.federate.faults"


def main() -> int:
    """Federations until there were enough faults; 1 where one of them ended wrong."""
    arguments = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    arguments.add_argument("--faults", type=int, default=100, help="faults in all")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--each", type=int, default=6, help="faults of one federation, at most")
    arguments.add_argument("--first", type=int, default=0, help="number of the first federation")
    arguments.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "ffalm-faults")
    asked = arguments.parse_args()
    why = hosts.obstacle()
    if why is not None:
        sys.exit(f"Faults {why}.")
    code = hosts.enter(MODULE, sys.argv[1:])
    if code is not None:
        return code
    hosts.prepare()
    asked.out.mkdir(parents=True, exist_ok=True)
    kept = [Report(**json.loads(path.read_text())) for path in sorted(asked.out.glob("federation-*.json"))]
    reports = {report.number: report for report in kept}
    kinds = deck(Random(asked.seed))
    for number in itertools.count(asked.first):
        done = sum(len(report.faults) for report in reports.values())
        if done >= asked.faults:
            break
        if number in reports:
            for _ in reports[number].faults:
                next(kinds)
            continue
        most = min(asked.each, asked.faults - done)
        with tempfile.TemporaryDirectory(prefix=f"faults-{number}-", ignore_cleanup_errors=True) as root:
            report = federation(number, asked.seed, kinds, most, Path(root) / "work")
            if report.problems:
                _keep(Path(root) / "work", asked.out / f"wrong-{number}")
            hosts.remove_disks(Path(root) / "work" / "fed")
        report.write(asked.out)
        reports[number] = report
        print(f"federation {number}: {len(report.faults)} faults, {report.problems or 'right'}", flush=True)
    print(table(reports.values()))
    return int(any(report.problems for report in reports.values()))


def _keep(work: Path, target: Path) -> None:
    """Copy logs and folders of a federation that ended wrong to where they can be looked at."""
    with suppress(shutil.Error):  # sockets cannot be copied
        shutil.copytree(work, target, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
