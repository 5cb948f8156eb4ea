"""Whatever is typed, the command line answers with one sentence and exit code 2, or does what it was asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzzing import commands
from tests.fuzzing.corpus import COMMANDS


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    commands.prepare_files(folder)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "folder")


def test_what_was_once_found_is_refused_with_one_sentence(here: Path) -> None:
    if not commands.has_flower():
        pytest.skip("some of these need the extra 'flower'")
    for arguments in COMMANDS:
        outcome = commands.outcome_of_command([argument.replace("HERE", str(here)) for argument in arguments])
        assert (outcome.kind, outcome.place) == ("refused", ""), arguments


def test_random_command_lines_are_answered_with_one_sentence(here: Path) -> None:
    for number in range(20):
        outcome, case = commands.run(number, 17, here)
        assert outcome.fine, f"{case}: {outcome}"


def test_which_options_take_paths_is_known_by_the_commands_own_signatures() -> None:
    """Both where a function names them and where flags are made for it; Typer's parameters differ by version."""
    assert commands.paths_of("export") == {"model", "file"}
    assert commands.paths_of("compare") == {"config", "out"}
    assert commands.paths_of("data describe") == set()


@pytest.mark.slow
def test_many_random_command_lines_are_answered_with_one_sentence(here: Path) -> None:
    for number in range(5000):
        outcome, case = commands.run(number, 18, here)
        assert outcome.fine, f"{case}: {outcome}"
