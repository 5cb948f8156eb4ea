"""What every package's tests share: one torch thread, and where the real data lies, if it is here at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Models of this size lose up to six times by a second thread; set before torch is imported, it also reaches the
#: processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
#: Compiled modules are kept, whatever the environment says: tests start dozens of processes that import the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, never part of the repository; tests that need it skip without it."""
    repository = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("FFALM_SHARED_DATA", repository.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("real data not present: set FFALM_SHARED_DATA to the folder that holds it")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Nothing is forced onto the disk: no test pulls the plug, and thousands of files wait for it otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
