"""The notebooks of docs/ run from top to bottom in a kernel of their own."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=[one.name for one in NOTEBOOKS])
def test_no_notebook_holds_an_error_or_a_large_output(file: Path) -> None:
    assert len(NOTEBOOKS) == 3
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    outputs: list[dict[str, Any]] = [one for cell in cells for one in cell.get("outputs", ())]
    assert not [one for one in outputs if one["output_type"] == "error"]
    assert file.stat().st_size < 40_000


@pytest.mark.docs
@pytest.mark.parametrize("file", NOTEBOOKS, ids=[one.name for one in NOTEBOOKS])
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")  # of the extra `docs`
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
