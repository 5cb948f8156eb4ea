"""The coordinator's own calls to its SuperLink, made by the `flwr` command: register keys, list sites, start runs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ffalm.errors import UserError
from ffalm.federate.deploy.processes import environment, executable
from ffalm.system import toml
from ffalm.system.files import parsed_json, write_atomic

#: The name of the SuperLink in Flower's configuration, also for a plain `flwr run`.
CONNECTION = "federation"

_SECONDS = 120.0
_KNOWN_KEY = "already in use"


class Control:
    """One SuperLink, controlled from the machine that it runs on."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home
        self._folder = folder  # for messages
        self._file = home / "config.toml"

    def configure(self, address: str, authority: Path | None) -> None:
        """Tell Flower where the SuperLink is; without an authority the connection is not encrypted."""
        trust = {"insecure": True} if authority is None else {"root-certificates": str(authority)}
        connection = {"address": address, **trust}
        write_atomic(self._file, toml.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}}))

    def forget(self) -> None:
        """Remove the address of a SuperLink that has ended: the next one listens on another port."""
        self._file.unlink(missing_ok=True)

    @property
    def configured(self) -> bool:
        """Whether the SuperLink has started, and can be asked."""
        return self._file.exists()

    @property
    def knows_keys(self) -> bool:
        """Whether the SuperLink was started with keys, not with --insecure."""
        if not self.configured:
            return False
        connection = toml.read(self._file).get("superlink", {}).get(CONNECTION, {})
        return not connection.get("insecure", False)

    def register(self, public_key: Path) -> None:
        """Register a key, unless it is or was registered."""
        try:
            self._ask("supernode", "register", str(public_key), CONNECTION)
        except UserError as error:
            if _KNOWN_KEY not in str(error):
                raise

    def unregister(self, node: int) -> None:
        """Unregister a node, which is for good."""
        self._ask("supernode", "unregister", str(node), CONNECTION)

    def nodes(self) -> dict[int, str]:
        """Every node's status by its number: registered, online, offline or unregistered."""
        listed = self._ask("supernode", "list", CONNECTION)["nodes"]
        return {int(node["node-id"]): str(node["status"]) for node in listed}

    def submit(self, app: Path) -> int:
        """Start a run of the app; its number."""
        return int(self._ask("run", str(app), CONNECTION)["run-id"])

    def status(self, run: int) -> str:
        """Flower's status of a run, such as "running" or "finished:failed"."""
        return str(self._run(run).get("status", "unknown"))

    def details(self, run: int) -> str:
        """Flower's details of how a run ended, in a line or more."""
        found = self._run(run)
        return str(found.get("status-details") or found.get("status") or "unknown")

    def _run(self, run: int) -> dict[str, Any]:
        listed: list[dict[str, Any]] = self._ask("list", CONNECTION, "--run-id", str(run))["runs"]
        return listed[0] if listed else {}

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._ask("stop", str(run), CONNECTION)

    def follow(self, run: int, log: Path) -> subprocess.Popen[bytes]:
        """A process that writes the run's log and ends when the run does."""
        with open(log, "ab") as file:
            return subprocess.Popen(
                [executable("flwr"), "log", str(run), CONNECTION, "--stream"],
                env=environment(self._home),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ask(self, *arguments: str) -> dict[str, Any]:
        """The answer to a `flwr` command."""
        try:
            done = subprocess.run(
                [executable("flwr"), *arguments, "--format", "json"],
                env=environment(self._home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"The coordinator of {self._folder} does not answer: look at its log, or stop and start it."
            ) from None
        answer = _json(done.stdout)
        if answer is None or not answer.get("success"):
            words = str(answer["error-message"]) if answer and "error-message" in answer else done.stdout + done.stderr
            raise UserError(f"Flower refused `flwr {' '.join(arguments[:2])}` for {self._folder}: {_reason(words)}")
        return answer


def _reason(words: str) -> str:
    """Why a command was refused, in one line: the first after the one that names the SuperLink."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    asked = max((number for number, line in enumerate(lines) if line.startswith("Using SuperLink")), default=-1)
    return next(iter(lines[asked + 1 :]), "no reason given")


def _json(text: str) -> dict[str, Any] | None:
    """The JSON object in a command's output, which may begin with other text."""
    try:
        found = parsed_json(text[text.index("{") :])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
