"""Little generated pictures, and a cache folder of each test's own: no test touches the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Painter = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's decoded images are kept."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FFALM_CACHE", str(folder))
    return folder


@pytest.fixture
def paint() -> Painter:
    """A function that writes a picture of noise, the same for the same seed, and makes its folders."""

    def write(path: Path, seed: int = 0, width: int = 20, height: int = 20) -> Path:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    return write
