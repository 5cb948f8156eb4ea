"""Seconds and CPU seconds a round of a real federation on this machine: `python benchmarks/federation_rounds.py`.

CPU seconds are those of the federation's own processes between the second and the last round, by kind of process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from ffalm.federate.deploy.operations import processes_of
from ffalm.federate.deploy.processes import executable, free_port

KINDS = {"fleet_gateway": "coordinator", "superexec": "coordinator", "serverapp": "run", "site_node": "sites"}


def main() -> None:
    """Train, and print a line."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--sites", type=int, default=3)
    flags.add_argument("--rounds", type=int, default=12)
    asked = flags.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "demo"
        ffalm = [executable("ffalm"), "federate"]
        size = ["--sites", str(asked.sites), "--rounds", str(asked.rounds)]
        address = ["--address", f"127.0.0.1:{free_port()}"]
        subprocess.run([*ffalm, "init", folder, "--demo", "census", *size, *address], check=True, capture_output=True)
        training = subprocess.Popen([*ffalm, "run", folder, "--local", "--quiet"], stdout=subprocess.DEVNULL)
        first = last = Counter[str]()
        while training.poll() is None and len(rounds(folder)) < asked.rounds:
            if len(rounds(folder)) == 2 and not first:
                first = cpu(folder)
            time.sleep(0.1)
        last = cpu(folder)
        training.wait()
        seconds = sorted(rounds(folder))
    used = {kind: round((last[kind] - first[kind]) / (asked.rounds - 2), 2) for kind in last}
    print(
        f"{asked.sites} sites: {seconds[len(seconds) // 2]:.1f} s a round (median; {seconds[0]:.1f} to "
        f"{seconds[-1]:.1f}), CPU seconds a round {used}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def rounds(folder: Path) -> list[float]:
    """How long each round so far took."""
    with suppress(OSError, ValueError):
        lines = (folder / "run" / "history.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["seconds"] for line in lines]
    return []


def cpu(folder: Path) -> Counter[str]:
    """The CPU seconds so far of the federation's processes, those of finished answers included."""
    used = Counter[str]()
    for number in {pid for process in processes_of(folder).values() for pid in process.family()}:
        with suppress(psutil.Error):
            process = psutil.Process(number)
            command, times = " ".join(process.cmdline()), process.cpu_times()
            kind = next((kind for sign, kind in KINDS.items() if sign in command), "answers")
            ended = times.children_user + times.children_system if kind == "answers" else 0.0
            used[kind] += times.user + times.system + ended
    return used


if __name__ == "__main__":
    main()
