"""One federation under random faults, from its beginning to what it came to."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import psutil
from tests.federate.deploy.machines import Machines, assert_equals_simulation
from tests.federate.faults import hosts
from tests.federate.faults.faults import FAULTS, Injected, Scene
from tests.federate.faults.hosts import Host
from tests.federate.faults.operator import Operator
from tests.federate.secure.test_secure_processes import assert_close_to_simulation

from ffalm.federate.deploy.processes import FlowerProcess

_SECONDS = 1200.0  # for a whole federation
_SECONDS_FOR_A_ROUND = 60.0
_AT_ONCE = 3  # faults that last
_PORT = 18000
_ROUNDS = 10
_RULES = ("rules.deadline=12.0", "rules.patience=45.0")
_RESULTS = ("report.md", "answer.json", "repair.json", "model.safetensors")
_TRAINING = """
import time
from ffalm.federate.site.answering import LocalSite

trained = LocalSite.train

def train(self, asked):
    time.sleep(0.5)  # as with more rows, so that faults meet sites at work
    return trained(self, asked)

LocalSite.train = train
"""
#: Sites, whether sums are secure, and the algorithm, of one federation after the other.
KINDS = (
    (3, False, "ffalm"),
    (3, True, "ffalm"),
    (3, False, "scaffold"),
    (5, False, "fairfed"),
    (5, True, "ffalm"),
)


@dataclass
class Report:
    """What befell a federation, and whether it came to the numbers of the simulation."""

    number: int
    sites: int
    secure: bool
    algorithm: str
    faults: list[tuple[str, str, float, int]] = field(default_factory=list)  # kind, where, seconds, after which round
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # last words of commands that failed
    seconds: float = 0.0

    def write(self, folder: Path) -> None:
        """Keep it."""
        (folder / f"federation-{self.number}.json").write_text(json.dumps(asdict(self), indent=1))


def deck(random: Random) -> Iterator[str]:
    """Kinds of faults in random order, each as often as any other."""
    while True:
        names = list(FAULTS)
        random.shuffle(names)
        yield from names


def federation(number: int, seed: int, kinds: Iterator[str], most: int, root: Path) -> Report:
    """Make a federation, train it under at most so many faults, and compare what came of it."""
    sites, secure, algorithm = KINDS[number % len(KINDS)]
    report, began = Report(number, sites, secure, algorithm), time.monotonic()
    root.mkdir(parents=True)
    machines = _made(root, sites, secure, algorithm, seed + number)
    operator = _staged(machines, root)
    try:
        _train(operator, Random(f"{seed}/{number}"), kinds, most, report, began + _SECONDS)
        if not report.problems:
            report.problems += _checked(machines, operator, secure)
    except Exception as error:  # the campaign goes on with the next
        report.problems.append(f"{type(error).__name__}: {error}")
    finally:
        operator.close()
        _end(operator.scene)
        report.problems += [f"traceback: {words[-2000:]}" for _, _, words in operator.done if "Traceback" in words]
        report.said = [f"{name} ({code}): {words[-600:]}" for name, code, words in operator.done if code]
        report.seconds = time.monotonic() - began
    return report


def _made(root: Path, sites: int, secure: bool, algorithm: str, seed: int) -> Machines:
    """A federation folder on a disk of its own, with each site's folder on another."""
    plain = Machines(root / "made")
    rules = [*_RULES, *(["rules.secure=true"] if secure else [])]
    settings = [word for rule in rules for word in ("--set", rule)]
    address = f"{hosts.COORDINATOR_ADDRESS}:{_PORT}"
    plain.init(
        "--address", address, "--sites", sites, "--rounds", _ROUNDS, "--algorithm", algorithm, "--seed", seed, *settings
    )
    moved = Machines(root)
    for folder in (moved.path, *(moved.path / "sites" / name for name in plain.folder.sites)):
        hosts.disk(folder)
    shutil.copytree(plain.path, moved.path, dirs_exist_ok=True)
    for name in moved.folder.sites:
        own = moved.folder.site(name)
        (own / "slow.py").write_text(_TRAINING)
        settings_file = own / "site.toml"
        settings_file.write_text(settings_file.read_text().replace("plugins = []", 'plugins = ["slow.py"]'))
    return moved


def _staged(machines: Machines, root: Path) -> Operator:
    """The machines of a federation, and who looks after them."""
    library, scratch = hosts.clock_library(root), root / "s"
    folder = machines.folder
    coordinator = Host("coordinator", folder.path, scratch, FlowerProcess(folder.coordinator, "superlink"), library)
    sites = [
        Host(name, folder.site(name), scratch, FlowerProcess(folder.site(name), "supernode"), library)
        for name in folder.sites
    ]
    for host in sites:
        host.connect()
    (root / "commands").mkdir()
    return Operator(coordinator, sites, root / "commands")


def _train(
    operator: Operator, random: Random, kinds: Iterator[str], most: int, report: Report, deadline: float
) -> None:
    """Let the operator train it, and do faults at random instants once the first `run` is under way."""
    active: list[tuple[float, Injected]] = []
    due: Due | None = None
    while not operator.finished():
        operator.look()
        now = time.monotonic()
        if now > deadline:
            report.problems.append(f"not finished within {_SECONDS:g} s, after {_rounds(operator)} rounds")
            break
        for entry in [entry for entry in active if entry[0] <= now]:
            entry[1].undo()
            active.remove(entry)
        if due is None and operator.run_command() is not None:
            due = Due(now + random.uniform(0, 12), random.choice((0, 0, 1, 2)))
        if due is not None and due.is_now(_rounds(operator)) and len(report.faults) < most and len(active) < _AT_ONCE:
            kind = next(kinds)
            done = FAULTS[kind](operator.scene, random)
            if done is not None:
                report.faults.append((kind, done.where, round(done.seconds, 1), _rounds(operator)))
                if done.seconds:
                    active.append((time.monotonic() + done.seconds, done))
                print(f"  {report.number}: {kind} at {done.where}, {done.seconds:.0f} s", flush=True)
            due = Due(time.monotonic() + random.choice((0.2, 3.0)), _rounds(operator) + random.choice((0, 0, 1, 2)))
        time.sleep(0.1)
    for _, fault in active:
        fault.undo()


@dataclass(frozen=True)
class Due:
    """When the next fault comes: after an instant and a round, however long that takes up to a minute."""

    instant: float
    round: int

    def is_now(self, done: int) -> bool:
        """Whether it is time, so many rounds being done."""
        late = time.monotonic() - self.instant
        return late >= 0 and (done >= self.round or late >= _SECONDS_FOR_A_ROUND)


def _rounds(operator: Operator) -> int:
    file = operator.folder / "run" / "history.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _checked(machines: Machines, operator: Operator, secure: bool) -> list[str]:
    """What is wrong with a federation that has ended."""
    problems = []
    deadline = time.monotonic() + 60
    while operator.under_way and time.monotonic() < deadline:  # sites that are still being started
        for who, command in list(operator.under_way.items()):
            if command.process.poll() is not None:
                del operator.under_way[who]
        time.sleep(0.1)
    if operator.stop():
        problems.append("`stop` failed")
    left = [host.name for host in (operator.scene.coordinator, *operator.scene.sites) if host.process.family()]
    problems += [f"processes left at {name}" for name in left]
    problems += [f"left behind: {path}" for path in _leftovers(operator.scene)]
    lacking = [name for name in _RESULTS if not (machines.folder.run / name).exists()]
    problems += [f"no {name} in the run folder" for name in lacking]
    try:
        (assert_close_to_simulation if secure else assert_equals_simulation)(machines)
    except AssertionError as error:
        problems.append(f"not the simulation's numbers: {str(error)[:500]}")
    return problems


def _leftovers(scene: Scene) -> Iterator[Path]:
    """Temporary files of processes that have ended, and secrets of a run that is over."""
    for host in (scene.coordinator, *scene.sites):
        yield from host.temporary.iterdir()
        for path in host.folder.rglob(".*"):
            if re.search(r"\.\d+$", path.name) or path.name == ".secure":
                yield path


def _end(scene: Scene) -> None:
    """Kill whatever still runs, and free the networks."""
    for host in (scene.coordinator, *scene.sites):
        for process in host.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        host.disconnect()


def table(reports: Iterable[Report]) -> str:
    """Faults by kind, and in how many federations that had them something was wrong."""
    seen: dict[str, list[int]] = {}
    for report in reports:
        for kind, *_ in report.faults:
            entry = seen.setdefault(kind, [0, 0])
            entry[0] += 1
            entry[1] += bool(report.problems)
    lines = ["| fault | times | in federations that ended wrong |", "|---|---|---|"]
    lines += [f"| {kind} | {seen[kind][0]} | {seen[kind][1]} |" for kind in FAULTS if kind in seen]
    total = sum(times for times, _ in seen.values())
    return "\n".join([*lines, f"| all | {total} | {sum(wrong for _, wrong in seen.values())} |"])
