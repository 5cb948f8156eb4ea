"""Rules about modules that `lint-imports` cannot state."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import ffalm
from ffalm.algorithms import algorithms

PACKAGE = Path(ffalm.__file__).parent
ALGORITHMS = {cls.__name__ for cls in algorithms().values() if cls.__module__.startswith("ffalm.")}
ALGORITHM_MODULES = {cls.__module__ for cls in algorithms().values()}


def names_in(source: str) -> set[str]:
    """Every identifier that code uses, imports or defines, and every module that it imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(one.name for one in node.names)}
        elif isinstance(node, ast.Import | ast.ClassDef):
            found |= {one.name for one in node.names} if isinstance(node, ast.Import) else {node.name}
    return found


def test_no_two_modules_have_the_same_name() -> None:
    counts = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("room", ["engines", "federate"])
def test_an_engine_or_a_federation_never_names_an_algorithm(room: str) -> None:
    assert {"FFALM", "FedAvg", "SCAFFOLD"} <= ALGORITHMS
    named = {
        str(path.relative_to(PACKAGE)): found
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (found := names_in(path.read_text(encoding="utf-8")) & (ALGORITHMS | ALGORITHM_MODULES))
    }
    assert named == {}


def test_the_rule_sees_every_way_of_naming_an_algorithm() -> None:
    ways = ["from ffalm.algorithms import FFALM", "isinstance(a, FedAvg)", "x = algorithms.SCAFFOLD()"]
    ways += ["from ffalm.algorithms.ffalm import Penalty", "import ffalm.algorithms.fedavg"]
    assert all(names_in(way) & (ALGORITHMS | ALGORITHM_MODULES) for way in ways)
