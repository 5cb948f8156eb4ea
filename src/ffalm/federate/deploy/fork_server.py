"""Starts Flower's SuperNode with a process beside it that has torch and everything else imported already.

Flower starts a new Python for each message, which then spends seconds importing, round after round. Here it finds
another `flwr-clientapp` first on its PATH: one that hands the task to the process beside, which forks. A fork is as
separate as a new process and starts at once.

    python -m ffalm.federate.deploy.fork_server HOME [flower-supernode's own flags]
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import traceback
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from ffalm.federate.deploy import client_task
from ffalm.federate.deploy.client_task import write_commands
from ffalm.federate.deploy.processes import commands

_NEEDED = (
    "ffalm.federate.deploy.federation_apps",
    "ffalm.federate.site.answering",
    "ffalm.federate.site.rows",
    "flwr.supernode.runtime.run_clientapp",
)
_SECONDS_A_LOOK = 0.5
_MOST_BYTES = 1 << 16


def main() -> None:
    """Become the SuperNode, after splitting off the process that runs its tasks."""
    home = Path(sys.argv.pop(1))
    tasks = _pipe(home)
    node = os.getpid()
    helper = os.fork()
    if helper == 0:
        run_tasks(tasks, node)
    write_commands(commands(home), _handing_over(tasks, helper))
    keep_heartbeats()
    sys.argv[0] = "flower-supernode"
    sys.exit(_entry("flower-supernode"))


def run_tasks(tasks: Path, node: int) -> None:
    """Fork for every line of arguments that comes through the pipe, as long as the SuperNode lives."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the tasks
    _preload()
    pipe = os.open(tasks, os.O_RDWR)  # being a writer too, it never sees an end
    while os.getppid() == node:
        if select.select([pipe], [], [], _SECONDS_A_LOOK)[0]:
            for line in os.read(pipe, _MOST_BYTES).decode().splitlines():
                if os.fork() == 0:
                    _run(line.split())
    os._exit(0)


def _run(arguments: list[str]) -> None:
    """One task, as `flwr-clientapp` would run it."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    sys.argv = [client_task.COMMAND, *arguments]
    code = 1
    try:
        client_task.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _preload() -> None:
    """Import what every task will need; one that cannot be imported is for the task itself to complain of."""
    for name in _NEEDED:
        try:
            import_module(name)
        except ImportError:
            traceback.print_exc()


def _pipe(home: Path) -> Path:
    tasks = home / "tasks"
    tasks.unlink(missing_ok=True)
    os.mkfifo(tasks, 0o600)
    return tasks


def _handing_over(tasks: Path, helper: int) -> str:
    """A command that writes its arguments as one line, short enough for a pipe to take it whole.

    Where the process beside has died, so that nobody reads the pipe, the command runs the task itself.
    """
    lives = f"sed -n 's/^State:[[:space:]]*\\([^ZX[:space:]]\\).*/\\1/p' /proc/{helper}/status 2>/dev/null"
    hand_over = f"printf '%s\\n' \"$*\" > {shlex.quote(str(tasks))}"
    return f'if [ -n "$({lives})" ]; then {hand_over}; else {client_task.STARTED_ANEW}; fi'


def keep_heartbeats() -> None:
    """Let one bad answer of the coordinator, such as an HTTP 500 where its disk is full, not end the heartbeats.

    Flower retries lost connections alone; after any other error a site would be deaf until somebody restarted it.
    """
    from flwr.supercore.heartbeat import HeartbeatFailure, HeartbeatSender

    original = HeartbeatSender._heartbeat

    def steady(sender: HeartbeatSender) -> None:
        try:
            original(sender)
        except HeartbeatFailure:
            raise
        except Exception as error:
            raise HeartbeatFailure from error

    HeartbeatSender._heartbeat = steady  # type: ignore[method-assign,assignment]


def _entry(command: str) -> int | None:
    (found,) = entry_points(group="console_scripts", name=command)
    code: int | None = found.load()()
    return code


if __name__ == "__main__":
    main()
