"""No test touches the user's cache of decoded images; real federations end with their tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.federate.deploy.machines import Machines


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's decoded images are kept."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FFALM_CACHE", str(folder))
    return folder


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """The folders and processes of a real federation, all of which end with the test."""
    from tests.federate.deploy.machines import Machines

    made = Machines(tmp_path)
    yield made
    made.close()
