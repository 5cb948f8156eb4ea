"""Every block of README and docs/ has a language, parses, and names commands and options that exist."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tests.docs.blocks import PAGES, ROOT, RUN, blocks_of, commands, fences, inline_commands

from ffalm import config
from ffalm.cli import app, flags
from ffalm.federate.federation_config import FederationConfig

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@cache
def our_commands() -> Any:
    """The whole command line, which takes most of a second to build."""
    flags.prepare(list(flags._pending))
    return typer.main.get_command(app)


def check_command(words: list[str]) -> None:
    """Fail if a command of ours, or an option of it, does not exist."""
    command = our_commands()
    context, rest = command.context_class(command, info_name="ffalm"), words
    while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)}"
        command = command.commands[rest[0]]
        context, rest = command.context_class(command, info_name=rest[0], parent=context), rest[1:]
    _, left, _ = command.make_parser(context).parse_args(args=list(rest))
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    assert not left or any(one.nargs == -1 for one in arguments), f"{' '.join(words)}: {left} is too much"


def check_toml(code: str, file: str | None) -> None:
    """Fail if settings are not those of a leaderboard's board, of a federation or of a study."""
    values = tomllib.loads(code)
    if values.keys() & {"methods", "cells"}:
        for cell in values.get("cells", {}).values():
            config.parse(cell | {"algorithms": {"fedavg": {}}})
    elif file == "federation.toml":
        needed = {"name": "clinics", "sites": ["a", "b", "c"], "data": {"label": "y", "group": "s", "favourable": "1"}}
        FederationConfig.parse(needed | values)
    else:
        config.parse({"algorithms": {"fedavg": {}}} | values)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_parses(page: Path) -> None:
    blocks = blocks_of(page)
    shown = [block for block in blocks if block.language in (*RUN, "text")]
    assert len(shown) == len(blocks), "a block has no language, or an unknown one"
    for block in blocks:
        if block.language == "python":
            ast.parse(block.code)
        elif block.language == "toml":
            check_toml(block.code, block.title)
        elif block.language == "bash":
            for words in commands(block.code):
                if words[0] == "ffalm":
                    check_command(words[1:])
    for words in inline_commands(page):
        named = words[-1] in ("--score", "--target", "--config")  # an option without its value
        check_command([*words[1:], *(["VALUE"] if named else [])])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_fence_is_overlooked(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fences(page) == 2 * (len(blocks_of(page)) - text.count("\n<!-- setup\n"))


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="--fairer"):
        check_command(["compare", "--fairer"])
    with pytest.raises(AssertionError, match="no command"):
        check_command(["federate", "begin"])
