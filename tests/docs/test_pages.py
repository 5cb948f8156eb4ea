"""Every block of README and docs/ runs, page by page, in a folder with the files that the pages speak of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import PAGES, ROOT, RUN, blocks_of
from tests.docs.example_files import write_files
from tests.docs.page_runner import ROUNDS, PageRun

from ffalm.algorithms.registry import _REGISTERED
from ffalm.data.census import Census
from ffalm.run_settings import Training

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore::UserWarning")]  # of models trained too short

#: Pages that run as they stand, because they promise how long that takes.
AS_WRITTEN = ("docs/tutorial.md",)
RUNNABLE = [page for page in PAGES if any(one.language in RUN and one.not_run is None for one in blocks_of(page))]
RUNNABLE.sort(key=lambda page: page.name not in ("tutorial.md", "federate.md"))  # the longest first


@pytest.fixture
def registered() -> Iterator[None]:
    """Forgets the algorithms that a page registers."""
    before = dict(_REGISTERED)
    yield
    _REGISTERED.clear()
    _REGISTERED.update(before)


def lessen(monkeypatch: pytest.MonkeyPatch, cls: Any, **values: Any) -> None:
    """Change defaults of a settings dataclass."""
    made = inspect.signature(cls.__init__).parameters.values()
    defaults = {one.name: one.default for one in made if one.default is not inspect.Parameter.empty} | values
    if cls.__init__.__kwdefaults__:
        monkeypatch.setattr(cls.__init__, "__kwdefaults__", defaults)
    else:
        monkeypatch.setattr(cls.__init__, "__defaults__", tuple(defaults.values()))


@pytest.mark.parametrize("page", RUNNABLE, ids=[str(page.relative_to(ROOT)) for page in RUNNABLE])
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: None
) -> None:
    short = str(page.relative_to(ROOT)) not in AS_WRITTEN
    if short:
        lessen(monkeypatch, Census, rows=4000)
        lessen(monkeypatch, Training, rounds=int(ROUNDS))
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    reader = PageRun(tmp_path, short)
    for block in blocks_of(page):
        if block.not_run is None:
            print(f"{page.name}, line {block.line}")
            reader.follow(block)
