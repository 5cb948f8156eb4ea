"""The two commands of the documentation, and what else a person does with a federation, as real processes."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.deploy.machines import PATIENCE, Machines, assert_equals_simulation, here, until

from ffalm import load_model
from ffalm.federate.deploy.operations import processes_of
from ffalm.federate.deploy.processes import environment, executable


def test_two_commands_train_a_federation_to_the_end_and_leave_nothing_running(
    machines: Machines, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machines.path.parent)
    Path("h2.py").write_text("raise SystemExit('imported from the working directory')")  # a library of Flower's
    machines.init("--sites", "2", "--rounds", "2")
    code, out, said = machines.ffalm("run", machines.path, "--local")
    assert code == 0, said
    assert "round 1/2" in said and "round 2/2" in said
    assert "All sites together" in out and "north" in out and "report.md" in out
    assert "Answer to dpd <= 0.05" in out
    machines.assert_nothing_left()
    assert_equals_simulation(machines)
    database = [path.read_bytes() for path in machines.folder.coordinator.glob("state.db*")]
    assert database and not any(b"safetensors" in content or b"model/" in content for content in database)
    capfd.readouterr()
    assert here("run", machines.path, "--local", "--json") == 0
    out, said = capfd.readouterr()
    assert "ended already" in said
    assert json.loads(out)["test"] == machines.result()["test"]
    assert json.loads(out)["answers"][0]["target"] == "dpd <= 0.05"
    machines.assert_nothing_left()


@pytest.mark.slow
def test_a_coordinator_and_three_sites_each_by_their_own_command(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "20", "--algorithm", "fairfed")
    machines.bring_up()
    code, out, _ = machines.ffalm("status", machines.path, "--json")
    seen = json.loads(out)
    assert code == 0
    assert {site["status"] for site in seen["sites"].values()} == {"online"}
    assert (seen["training"], seen["round"]) == ("not started", 0)
    for name in machines.folder.sites:
        for pid in machines.site(name).process.family():
            assert all(one.status != psutil.CONN_LISTEN for one in psutil.Process(pid).net_connections("inet"))
    code, _, said = machines.ffalm("run", machines.path, "--detach")
    assert code == 0, said
    code, out, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    assert "under way" in said and "All sites together" in out
    code, out, _ = machines.ffalm("status", machines.path, "--json")
    seen = json.loads(out)
    assert (seen["training"], seen["round"]) == ("finished", 20)
    assert 0 < seen["metrics"]["accuracy"] <= 1
    code, out, _ = machines.ffalm("stop", machines.path)
    assert code == 0
    assert out.strip() == "Ended: north, south, west, coordinator."
    machines.assert_nothing_left()
    assert_equals_simulation(machines)


@pytest.mark.slow
def test_a_plain_flwr_run_of_the_app_trains_too(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "1")
    machines.bring_up()
    home = machines.folder.coordinator / "home"
    source = os.pathsep.join([str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")])
    plain = {**os.environ, "FLWR_HOME": str(home), "PATH": environment(home)["PATH"], "PYTHONPATH": source}
    done = subprocess.run(
        [executable("flwr"), "run", str(machines.folder.app), "--stream"],
        env=plain,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equals_simulation(machines)


@pytest.mark.slow
def test_ctrl_c_ends_everything_and_the_same_command_goes_on(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "30")
    run = machines.background("run", machines.path, "--local")
    until(lambda: len(machines.history()) >= 2 or run.poll() is not None, "two rounds")
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, said
    assert f"go on with: ffalm federate run {machines.path} --local" in said
    assert "Traceback" not in said
    machines.assert_nothing_left()
    assert 2 <= len(machines.history()) < 30
    code, _, said = machines.ffalm("run", machines.path, "--local")
    assert code == 0, said
    assert_equals_simulation(machines)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGHUP")
def test_a_closed_terminal_ends_everything_and_the_same_command_goes_on(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "30")
    command = shlex.join([sys.executable, "-m", "ffalm", "federate", "run", str(machines.path), "--local"])
    with _terminal(f"{command}; exit") as shell:
        until(lambda: len(machines.history()) >= 2 or shell.poll() is not None, "two rounds")
        processes = processes_of(machines.path)
        assert all(process.family() for process in processes.values()), "everything runs"
    until(lambda: not any(process.family() for process in processes.values()), "all processes end", 60)
    machines.assert_nothing_left()
    assert 2 <= len(machines.history()) < 30
    code, _, said = machines.ffalm("run", machines.path, "--local")
    assert code == 0, said
    assert_equals_simulation(machines)


@contextmanager
def _terminal(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell with a command in a terminal of its own, which is closed at the end."""
    ours, theirs = os.openpty()
    closing = threading.Event()

    def read_out() -> None:  # or nobody could write any more
        while not closing.is_set():
            if select.select([ours], [], [], 0.05)[0]:
                with suppress(OSError):
                    os.read(ours, 4096)

    begin = f"import os; os.login_tty({theirs}); os.execvp('sh', ['sh', '-c', {command!r}])"
    shell = subprocess.Popen([sys.executable, "-c", begin], pass_fds=[theirs])
    os.close(theirs)
    reader = threading.Thread(target=read_out)
    reader.start()
    try:
        yield shell
    finally:
        closing.set()
        reader.join()
        os.close(ours)
        shell.wait(PATIENCE)


@pytest.mark.slow
def test_without_keys_it_trains_only_when_asked_to_and_warns_and_a_blind_rule_is_searched(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "1", "--repair", "blind")
    code, out, said = machines.ffalm("run", machines.path, "--local", "--insecure")
    assert code == 0, said
    assert "nothing is encrypted" in said
    assert "The sites count rows for a blind rule." in said and "Blind rule on FFALM" in out
    assert load_model(machines.path).task.name == machines.folder.name
    assert_equals_simulation(machines)
