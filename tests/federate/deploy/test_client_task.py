"""A site runs the client app of its own installation, whatever app a run brings."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ffalm.federate.deploy import client_task

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")


def foreign_bundle(marker: Path) -> bytes:
    """A Flower app whose import leaves a mark: what it could do with a site's rows and key."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr("pyproject.toml", '[tool.flwr.app.components]\nclientapp = "foreign:app"\n')
        bundle.writestr(
            "foreign.py", f"open({str(marker)!r}, 'w').close()\nfrom flwr.clientapp import ClientApp as app\n"
        )
    return content.getvalue()


def test_a_foreign_app_is_neither_unpacked_nor_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import cli
    from flwr.supernode.runtime import run_clientapp

    runtime: Any = run_clientapp

    from ffalm.federate.deploy.federation_apps import client

    marker = tmp_path / "ran"
    fab = SimpleNamespace(content=foreign_bundle(marker), hash_str="0" * 64)
    run = SimpleNamespace(fab_id="evil/app", fab_version="1.0.0", run_id=1)
    loaded: list[Any] = []

    def task() -> None:
        """The lines of Flower's task that lead to its app."""
        runtime.install_from_fab(fab.content, skip_prompt=True)
        runtime.get_project_dir(run.fab_id, run.fab_version, fab.hash_str)
        load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
        loaded.append(load(run.fab_id, run.fab_version, fab.hash_str))

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cli, "flwr_clientapp", task)
    for name in ("install_from_fab", "get_project_dir", "get_load_client_app_fn"):
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    client_task.main()
    assert loaded == [client]
    assert not marker.exists() and not (tmp_path / "home").exists()


def test_commands_for_other_kinds_of_tasks_refuse(tmp_path: Path) -> None:
    client_task.write_commands(tmp_path / "bin", "echo ours")
    for name in client_task.REFUSED:
        done = subprocess.run([tmp_path / "bin" / name], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"it runs no {name}" in done.stderr
    done = subprocess.run([tmp_path / "bin" / client_task.COMMAND], capture_output=True, text=True, check=True)
    assert done.stdout == "ours\n"
    client_task.write_commands(tmp_path / "bin")
    script = (tmp_path / "bin" / client_task.COMMAND).read_text()
    assert f"exec {sys.executable} -m ffalm.federate.deploy.client_task" in script
