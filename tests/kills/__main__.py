"""Disturb studies at length: `python -m tests.kills --kills 1000 --seed 0`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.fuzzing.outcomes import Findings
from tests.kills.children import import_everything
from tests.kills.trials import KINDS, Prepared, run


def main() -> None:
    """Run trials one after the other and print what came of each kind; the exit code is 1 where there was a bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no trial after this time")
    parser.add_argument("--folder", help="where studies are written")
    asked = parser.parse_args()
    import_everything()
    findings, began, done = Findings(), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="ffalm-kills-", dir=asked.folder) as folder:
        made = Prepared.of(Path(folder))
        for number in range(asked.first, asked.first + asked.kills):
            if time.monotonic() - began > asked.seconds:
                break
            outcome, case = run(number, asked.seed, made)
            findings.add(outcome, f"#{number} {case}")
            done += 1
            if done % 100 == 0:
                print(findings.text(), f"{done} trials in {time.monotonic() - began:.0f} s", sep="\n", flush=True)
            if not outcome.fine:
                print(f"BUG #{number} {outcome.kind} {case}: {outcome.place}", flush=True)
    print(findings.text())
    print(f"{done} trials of {len(KINDS)} kinds in {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(findings.bugs))


if __name__ == "__main__":
    main()
