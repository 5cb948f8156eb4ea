"""Spreading a study over processes, and collecting their results.

Each run has its own folder and only its worker writes there, so the study can be resumed whatever happens to this
process or to a worker.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
import queue
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FunctionType
from typing import Any

from ffalm.config import StudyConfig
from ffalm.errors import UserError, require
from ffalm.plugins import attributed, import_plugin
from ffalm.studies.execution import ExecutionPlan, Listener, Task, execute
from ffalm.system.child_process import follow_parent


def run_study(config: StudyConfig, folder: Path, spread: ExecutionPlan, listener: Listener) -> None:
    """Compute every run of a study that its folder does not hold yet."""
    if spread.processes == 1:
        for task in spread.tasks:
            execute(config, folder, task, spread, listener, spread.devices[0])
    else:
        _run_in_processes(config, folder, spread, listener)


def _run_in_processes(config: StudyConfig, folder: Path, spread: ExecutionPlan, listener: Listener) -> None:
    require(
        getattr(sys.modules["__main__"], "__file__", None) != "<stdin>",
        "Worker processes cannot read a script from standard input: save it as a file, or use 1 worker.",
    )
    try:
        _Importable(io.BytesIO()).dump(config)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"The study cannot be sent to worker processes ({error}): define its model and algorithms in a module of "
            "your own, or use 1 worker."
        ) from None
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    devices: Any = context.Queue()
    for device in spread.devices:
        devices.put(device)
    started = (events, devices, config.plugins)
    pool = ProcessPoolExecutor(spread.processes, mp_context=context, initializer=_start_worker, initargs=started)
    try:
        pending = {pool.submit(_work, config, folder, task, spread) for task in spread.tasks}
        while pending:
            _pass_on(events, listener)
            for future in [future for future in pending if future.done()]:
                pending.remove(future)
                _check(future)
        _pass_on(events, listener)
    finally:
        _end(pool)  # finished workers too, since a process with torch takes most of a second to exit by itself


class _Importable(pickle.Pickler):
    """Refuses classes and functions defined in a notebook or interactive session, which workers cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            kind = "class" if isinstance(value, type) else "function"
            if not hasattr(sys.modules["__main__"], "__file__"):
                raise pickle.PicklingError(f"the {kind} {value.__name__} exists only in this session")
        return NotImplemented


def _pass_on(events: Any, listener: Listener) -> None:
    """Pass the workers' records to the listener until there are none for a moment."""
    while True:
        try:
            plan, record = events.get(timeout=0.1)
        except queue.Empty:
            return
        listener(plan, record)


def _check(future: Future[None]) -> None:
    try:
        future.result()
    except BrokenProcessPool:
        raise UserError(
            "A worker process died, perhaps because memory ran out: resume with fewer workers. In a script of your "
            'own, the main part must be under `if __name__ == "__main__":`.'
        ) from None


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop the workers at once: their folders are whole at any instant."""
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


_events: Any = None
_device: str = "cpu"


def _start_worker(events: Any, devices: Any, plugins: tuple[str, ...]) -> None:
    """In a new worker: take a device and import the plugins, into whose classes tasks are unpickled."""
    global _events, _device
    _events, _device = events, devices.get()
    follow_parent()
    for name in plugins:
        import_plugin(Path(name))


def _work(config: StudyConfig, folder: Path, task: Task, spread: ExecutionPlan) -> None:
    with attributed():
        execute(config, folder, task, spread, lambda plan, record: _events.put((plan, record)), _device)
