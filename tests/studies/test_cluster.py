"""A study on a real Ray cluster on loopback gives the numbers of a study in this process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ffalm.algorithms.registry import _REGISTERED
from ffalm.config import StudyConfig, parse
from ffalm.errors import UserError
from ffalm.outcome import Outcome
from ffalm.studies.cluster import _packed, _unpack, run_on_cluster
from ffalm.studies.grid import finished, plans, run_folder
from ffalm.studies.study import begin, compute_study

SETTINGS: dict[str, Any] = {
    "data": {"source": "census", "rows": 600},
    "partition": {"clients": 3, "alpha": 5.0},
    "training": {"rounds": 3},
    "seeds": [0, 1],
    "algorithms": {"fedavg": {}, "ffalm": {"preset": "safe"}},
    "device": "cpu",
}


def config() -> StudyConfig:
    return parse(SETTINGS)


def outcomes(config: StudyConfig, folder: Path) -> list[Outcome]:
    found = [finished(config, folder, plan) for plan in plans(config)]
    return [outcome for outcome in found if outcome is not None]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("ray", reason="Ray is not installed: it comes with the extra 'flower'")
    with _only_cluster(), _cluster() as found:
        yield found


@contextmanager
def _only_cluster() -> Iterator[None]:
    """Wait until no other test process has a cluster: two on one host give their workers the same ports, and crash."""
    with (Path(tempfile.gettempdir()) / "ffalm-test-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _cluster() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    head = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"),
            *(f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"),
            f"--temp-dir=/tmp/ray-{port}",  # sockets have short names, and pytest's folders are long
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        for process in _mentioning(f"/tmp/ray-{port}"):
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(f"/tmp/ray-{port}", ignore_errors=True)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the Ray cluster did not start"
            time.sleep(0.2)


def _mentioning(text: str) -> list[int]:
    """Processes whose command line holds a text: what a cluster started on its own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text in (entry / "cmdline").read_text() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_numbers_and_resumes(address: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    compute_study(config(), here)
    seen: list[tuple[str, int]] = []
    run_on_cluster(config(), there, address, lambda plan, record: seen.append((plan.title, record["round"])))
    expected, found = outcomes(config(), here), outcomes(config(), there)
    assert [outcome.test for outcome in found] == [outcome.test for outcome in expected]
    assert len(seen) == 4 * 3
    for plan in plans(config()):
        models = [run_folder(config(), folder, plan).path / "model.safetensors" for folder in (here, there)]
        assert models[0].read_bytes() == models[1].read_bytes()
    before = {path: path.stat().st_mtime_ns for path in there.rglob("result.json")}
    run_on_cluster(config(), there, address, lambda plan, record: None)
    assert len(outcomes(config(), there)) == 4
    assert set(before) == set(there.rglob("result.json"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_costs_a_new_start_and_nothing_else(address: str, tmp_path: Path) -> None:
    long = parse({**SETTINGS, "training": {"rounds": 400}, "seeds": [0], "algorithms": {"fedavg": {}, "fpfl": {}}})
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    compute_study(long, here)
    killed: list[int] = []
    killer = threading.Thread(target=_kill_one_worker, args=(killed,))
    killer.start()
    run_on_cluster(long, there, address, lambda plan, record: None)
    killer.join()
    assert killed
    assert [o.test for o in outcomes(long, there)] == [o.test for o in outcomes(long, here)]


def _kill_one_worker(killed: list[int]) -> None:
    """Kill the first worker that is seen at work, a moment into it."""
    deadline = time.monotonic() + 60
    while not killed and time.monotonic() < deadline:
        for process in _mentioning("ray::_compute"):
            time.sleep(1.0)
            os.kill(process, signal.SIGKILL)
            killed.append(process)
            break
        time.sleep(0.1)


def test_a_task_travels_with_its_checkpoints_and_comes_back_without_them(tmp_path: Path) -> None:
    one = parse({**SETTINGS, "seeds": [0], "algorithms": {"fedavg": {}, "fpfl": {}}})
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    compute_study(one, home)
    task = plans(one)[:1]
    whole = _packed(one, home, task, whole=True)
    assert any("checkpoint" in name for name in whole)
    assert not any("fpfl" in name for name in whole)
    _unpack(away, whole)
    assert run_folder(one, away, task[0]).outcome() == run_folder(one, home, task[0]).outcome()
    assert not any("checkpoint" in name for name in _packed(one, home, task, whole=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flowers_simulated_clients_run_on_a_cluster_by_its_address(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: it comes with the extra 'flower'")
    monkeypatch.setenv("RAY_ADDRESS", "")
    study, out = parse({**SETTINGS, "engine": "flower"}), tmp_path / "flower"
    found = compute_study(study, out, ray=address)
    assert os.environ["RAY_ADDRESS"] == address
    reference, here = parse({**SETTINGS, "engine": "loop"}), tmp_path / "loop"
    expected = compute_study(reference, here)
    for one, other in zip(found.results, expected.results, strict=True):
        assert one.test == pytest.approx(other.test, abs=1e-6, nan_ok=True)
        assert [record["train_loss"] for record in one.history] == pytest.approx(
            [record["train_loss"] for record in other.history], abs=1e-6
        )


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import ffalm

@ffalm.register
@dataclass(frozen=True)
class Faulty(ffalm.Algorithm):
    name: ClassVar[str] = "faulty"
    title: ClassVar[str] = "Faulty"

    def objective(self, batch, state):
        return batch.losses.mean(-1)

    def drift(self, weights, sent, own):
        return {}["nothing"]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A plugin whose clients fail in their first step."""
    path = tmp_path / "faulty.py"
    path.write_text(PLUGIN)
    yield path
    _REGISTERED.pop("faulty", None)
    for name in [name for name in sys.modules if name.startswith("ffalm_plugin_faulty")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["loop", "flower"])
def test_a_plugins_mistake_on_a_cluster_is_told_with_its_line(
    engine: str, address: str, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    faulty = parse({**SETTINGS, "plugins": [str(plugin)], "algorithms": {"faulty": {}}, "engine": engine})
    with pytest.raises(UserError, match=rf"^KeyError in line 16 of the plugin {plugin}: 'nothing'\. Clients receive"):
        compute_study(faulty, tmp_path / "out", ray=address)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_computes_by_the_engine_that_the_studys_record_names(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, alone = config(), tmp_path / "there", tmp_path / "loop"
    with monkeypatch.context() as short:
        short.setattr("ffalm.engines.choice.free", lambda device, processes: 10**5)
        with begin(here, there) as started:
            assert started.record.engine == "loop"
    resumed = compute_study(here, there, existing="resume", ray=address)
    assert resumed.record.engine == "loop"
    compute_study(parse({**SETTINGS, "engine": "loop"}), alone)
    for plan in plans(here):
        models = [run_folder(here, folder, plan).path / "model.safetensors" for folder in (there, alone)]
        assert models[0].read_bytes() == models[1].read_bytes()


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: it comes with the extra 'flower'")
    with pytest.raises(UserError, match=r"Ray cluster at '127\.0\.0\.1:1' cannot be reached"):
        run_on_cluster(config(), tmp_path, "127.0.0.1:1", lambda plan, record: None)
