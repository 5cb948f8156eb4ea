"""The project's own files agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import ffalm

ROOT = Path(__file__).parents[1]


def check_version(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "check-version", version], capture_output=True, text=True, check=False)


def test_package_citation_and_changelog_have_the_same_version() -> None:
    assert check_version(ffalm.__version__).returncode == 0, check_version(ffalm.__version__).stderr


@pytest.mark.parametrize("version", ["", "0.0.0", "0.1"])
def test_a_release_of_another_version_is_refused(version: str) -> None:
    assert check_version(version).returncode != 0


def test_the_lock_file_pins_every_direct_dependency_and_names_no_place() -> None:
    lines = [line for line in (ROOT / "requirements-lock.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    direct = [*project["dependencies"], *extras["dev"], *extras["flower"], *extras["docs"]]
    names = [re.split(r"[\[<>=!~ ]", line, maxsplit=1)[0] for line in direct]
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in names} <= pinned


def test_the_container_file_copies_what_is_there_and_runs_a_command_of_ours() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert copied and all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "'.[flower]'" in text and "flower" in project["optional-dependencies"]
    assert 'ENTRYPOINT ["ffalm", "federate"]' in text and "ffalm" in project["scripts"]
