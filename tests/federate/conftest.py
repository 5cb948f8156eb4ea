"""No test touches the user's cache of decoded images."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's decoded images are kept."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FFALM_CACHE", str(folder))
    return folder
