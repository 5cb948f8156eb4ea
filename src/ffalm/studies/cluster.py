"""Spreading a study over a Ray cluster, with the same runs and the same folder as on one machine.

A task is sent to a worker with the content of its run folders so far, and comes back as finished run folders. If a
worker or a machine is lost, its tasks start again elsewhere; nothing else is lost. Data files and plugins must have the
same path on every machine.
"""

from __future__ import annotations

import importlib.util
import logging
import pickle
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ffalm
from ffalm.config import StudyConfig
from ffalm.errors import UserError
from ffalm.plugins import attributed, import_plugin
from ffalm.simulation import placed
from ffalm.studies.execution import ExecutionPlan, Listener, Task, execute, plan_execution
from ffalm.studies.grid import RunPlan, plans, run_folder, run_of
from ffalm.studies.store import RunFolder
from ffalm.system.files import write_atomic
from ffalm.system.hardware import cores, device

Files = dict[str, bytes]


def run_on_cluster(config: StudyConfig, folder: Path, address: str, listener: Listener, engine: str = "") -> None:
    """Compute every run of a study that its folder does not hold yet on the cluster at this address.

    `engine` is the one that "auto" chose for the study, which its record names; by default it is chosen here.
    """
    ray = _connected(address)
    try:
        _run(ray, config, folder, listener, engine)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):  # the sentence alone, without the worker's traceback
            raise error.cause from None
        raise
    finally:
        ray.shutdown()


def _run(ray: Any, config: StudyConfig, folder: Path, listener: Listener, engine: str) -> None:
    found = ray.cluster_resources()
    config = replace(config, device=placed(config.device, run_of(config, plans(config)[0]).jobs[0].spec.model))
    gpus = int(found.get("GPU", 0)) if config.device != "cpu" else 0
    spread = plan_execution(replace(config, workers=gpus or max(1, int(found.get("CPU", 1)))), engine)
    work = ray.remote(_compute).options(num_cpus=spread.threads, num_gpus=1 if gpus else 0, max_retries=-1)
    pending = {
        work.remote(
            config.plugins, pickle.dumps((config, task, spread)), _packed(config, folder, task.runs, whole=True)
        ): task
        for task in spread.tasks
    }
    while pending:
        done, _ = ray.wait(list(pending))
        for reference in done:
            task = pending.pop(reference)
            _unpack(folder, ray.get(reference))
            for plan in task.runs:
                for record in run_folder(config, folder, plan).history():
                    listener(plan, record)


def _compute(plugins: tuple[str, ...], sent: bytes, begun: Files) -> Files:
    """On a worker: resume a task from the files of its run folders, and return their files at the end.

    The task is unpickled here, after importing the plugins, since it may hold instances of their classes.
    """
    for name in plugins:
        import_plugin(Path(name))
    config: StudyConfig
    task: Task
    config, task, spread = pickle.loads(sent)
    here = replace(spread, devices=[config.device] * _beside(config, spread))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _unpack(folder, begun)
        with attributed():
            execute(config, folder, task, here, lambda plan, record: None, config.device)
        return _packed(config, folder, task.runs, whole=False)


def _beside(config: StudyConfig, spread: ExecutionPlan) -> int:
    """How many workers may share this machine's memory: as many as its cores allow, or one per GPU."""
    return max(1, cores() // spread.threads) if device(config.device).type == "cpu" else 1


def _packed(config: StudyConfig, folder: Path, runs: list[RunPlan], whole: bool) -> Files:
    """The files of run folders, by path within the study's; with checkpoints only if `whole`."""
    files: Files = {}
    for plan in runs:
        run: RunFolder = run_folder(config, folder, plan)
        for path in sorted(run.path.rglob("*")) if run.path.exists() else []:
            inside = path.relative_to(run.path)
            hidden = any(part.startswith(".") for part in inside.parts)
            if path.is_file() and not hidden and (whole or inside.parts[0] != "checkpoint"):
                files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def _unpack(folder: Path, files: Files) -> None:
    """Write files into a folder, each run's result last, since its presence says that the run is finished."""
    for name in sorted(files, key=lambda name: Path(name).name == "result.json"):
        write_atomic(folder / name, files[name])


def check(address: str) -> None:
    """Refuse an unusable cluster at once, since Ray waits minutes for a machine that does not answer."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("A Ray cluster needs Ray, which comes with `pip install 'ffalm[flower]'`.")
    host, found, port = address.rpartition(":")
    if not found or not port.isdigit() or "://" in address:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UserError(f"The Ray cluster at {address!r} cannot be reached: {error}.") from None


def _connected(address: str) -> Any:
    """Ray, connected to a cluster whose workers get this package."""
    check(address)
    import ray

    try:
        ray.init(
            address=address,
            runtime_env={"py_modules": [str(Path(ffalm.__file__).parent)]},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(f"The Ray cluster at {address!r} cannot be used: {reason}.") from None
    return ray
