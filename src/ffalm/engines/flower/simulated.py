"""Flower's simulation runtime as a block: inside it every client is a Flower node, computed by Ray's processes."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
from flwr.simulation import run_simulation
from ray._private.state import actors
from ray._private.worker import global_worker

from ffalm.engines.flower.apps import Answer, client_app, server_app
from ffalm.engines.flower.engine import QUIET
from ffalm.engines.flower.sites import GridSites
from ffalm.engines.remote.message import Fact, Sites
from ffalm.errors import UserError, require

_PACKAGE = Path(__file__).resolve().parents[2]  # what a cluster's workers are sent
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_SHARE_OF_A_GPU = 0.25  # clients that share a GPU must fit on it together


@contextmanager
def ray_session(processes: int) -> Iterator[None]:
    """Ray with so many processes on this machine, or the cluster that the variable RAY_ADDRESS names."""
    require(
        not ray.is_initialized(),
        "The engine 'flower' starts Ray itself, and this process already uses Ray: call ray.shutdown() first.",
    )
    cluster = os.environ.get("RAY_ADDRESS")
    passed_on = {"PYTHONPATH": os.pathsep.join(place for place in sys.path if place), **QUIET}
    where: dict[str, Any] = {"address": "local", "num_cpus": processes, "include_dashboard": False}
    environment: dict[str, Any] = {"env_vars": passed_on}
    if cluster:
        where = {"address": cluster}
        environment = {"env_vars": QUIET, "py_modules": [str(_PACKAGE)]}
    with nullcontext() if cluster else own_token():
        try:
            with _unwarned():
                ray.init(**where, runtime_env=environment, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(f"Ray, which runs the simulated clients, cannot be started: {reason}.") from None
        try:
            yield
        finally:
            with _unwarned():
                ray.shutdown()


@contextmanager
def simulated(nodes: int, answer: Answer, gpu: bool) -> Iterator[Sites]:
    """So many nodes that answer as the function says, until the block ends. Needs Ray to be running.

    Flower leads its simulation in threads of its own; its server app does no more than hand over the sites.
    """
    door: queue.Queue[Sites] = queue.Queue()
    finished = threading.Event()
    runtime = _Runtime()

    def lead(sites: Sites, settings: dict[str, Fact]) -> None:
        door.put(sites)
        while not finished.wait(1.0) and threading.main_thread().is_alive():
            pass

    app, clients = server_app(lead, lambda grid: GridSites(grid, runtime.check)), client_app(answer, traces=True)
    needs: dict[str, Any] = {"num_cpus": 1, "num_gpus": _SHARE_OF_A_GPU if gpu else 0.0}
    runtime.start(lambda: run_simulation(app, clients, nodes, backend_config={"client_resources": needs}))
    try:
        yield _arrived(door, runtime, nodes)
    except BaseException:
        with suppress(Exception):  # the error that brought us here is the one to report
            _abandon()
        raise
    finally:
        with _unwarned():
            finished.set()
            runtime.join()


class _Runtime:
    """The thread in which Flower runs its simulation, silently, and what it died of."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, simulation: Callable[[], None]) -> None:
        def run() -> None:
            logger = logging.getLogger("flwr")
            level = logger.level
            logger.setLevel(logging.CRITICAL + 1)
            try:
                simulation()
            except BaseException as error:
                self._error = error
            finally:
                logger.setLevel(level)

        self._thread = threading.Thread(target=run, name="flower-simulation", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if the simulation has ended unexpectedly."""
        if self._thread is not None and not self._thread.is_alive():
            raise RuntimeError("Flower's simulation runtime stopped before its clients had answered.") from self._error

    def join(self) -> None:
        """Wait for the simulation to end."""
        if self._thread is not None:
            self._thread.join()


def _abandon() -> None:
    """End the clients that are still training: nobody wants their answers, which may take minutes."""
    driver: Any = global_worker
    for number, actor in actors().items():
        if actor["State"] == "ALIVE" and actor["JobID"] == ray.get_runtime_context().get_job_id():
            driver.core_worker.kill_actor(ray.ActorID.from_hex(number), True)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Ray warns, in whichever thread starts or ends it, of variables to come and processes not yet gone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _arrived(door: queue.Queue[Sites], runtime: _Runtime, nodes: int) -> Sites:
    """The sites, once all of their nodes are known."""
    while True:
        runtime.check()
        with suppress(queue.Empty):
            sites = door.get(timeout=0.05)
            break
    while len(sites.present()) < nodes:
        runtime.check()
        time.sleep(0.01)
    return sites


@contextmanager
def own_token() -> Iterator[None]:
    """A fresh token for the processes that Ray starts inside; where the user has set Ray's variables, those hold.

    Ray listens on every interface and runs whatever code it is sent. With a token that only this process and its
    children know, nobody else is let in.
    """
    if any(name in os.environ for name in _AUTHENTICATION):
        yield
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    _reload()
    try:
        yield
    finally:
        for name in _AUTHENTICATION:
            os.environ.pop(name, None)
        _reload()


def _reload() -> None:
    """Let Ray read the variables again: it does so once, when it is imported."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
