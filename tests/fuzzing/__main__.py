"""Run fuzzers at length: `python -m tests.fuzzing all --cases 100000 --seed 0 --processes 2`."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.fuzzing.outcomes import Findings, Outcome
from tests.fuzzing.surfaces import SHARES, cases

_TOGETHER = 40  # cases that a process is handed at a time


def _parts(surface: str, first: int, count: int) -> Iterator[tuple[str, range]]:
    """The cases in pieces, those of all surfaces side by side: a run that is cut short has some of each."""
    shares = SHARES if surface == "all" else {surface: 1.0}
    ends = {name: first + round(count * share) for name, share in shares.items()}
    pieces = [
        ((begin - first) / shares[name], name, range(begin, min(end, begin + _TOGETHER)))
        for name, end in ends.items()
        for begin in range(first, end, _TOGETHER)
    ]
    yield from ((name, numbers) for _, name, numbers in sorted(pieces, key=lambda piece: piece[:2]))


def main() -> None:
    """Draw cases, run them, print what came of them; the exit code is 1 where there was a bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("surface", choices=["all", *SHARES])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no more cases after this time")
    asked = parser.parse_args()
    began, total, counts = time.monotonic(), Findings(), dict.fromkeys(SHARES, 0)
    parts = list(_parts(asked.surface, asked.first, asked.cases))
    with ProcessPoolExecutor(asked.processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(cases, name, numbers, asked.seed): (name, numbers) for name, numbers in parts}
        for done in as_completed(waiting):
            if done.cancelled():
                continue
            name, numbers = waiting[done]
            counts[name] += len(numbers)
            try:
                found = done.result()
            except Exception as error:  # a process that died, or a mistake of the fuzzer's own
                found = Findings()
                found.add(Outcome(False, "no result", repr(error)[:200]), f"{name} {numbers}")
            for place in found.bugs.keys() - total.bugs.keys():
                print(f"BUG {place}: {found.bugs[place][0][:300]}", flush=True)
            total.merge(found)
            if time.monotonic() - began > asked.seconds:
                for one in waiting:
                    one.cancel()
    print(total.text())
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count), end="; ")
    print(f"{sum(counts.values())} cases in {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(total.bugs))


if __name__ == "__main__":
    main()
