"""Masks need the library `cryptography`, which comes with the extra 'flower'."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cryptography() -> None:
    pytest.importorskip("cryptography", reason="secure aggregation needs the extra 'flower'")
