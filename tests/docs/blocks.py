"""The code blocks of README and docs/, and the commands in them.

<!-- not run: REASON -->   before a block: it cannot run here; its commands and syntax are checked all the same
<!-- setup                 Python that runs and that readers do not see, up to a line with -->
```LANGUAGE title="FILE"   the block is a file of that name; Python is not run by itself then
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUN = ("bash", "python", "toml")  # `text` is output, or a picture in letters
_PART = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^(?P=indent)```$"
    r"|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+) -->\s*\Z")
_INLINE = re.compile(r"(?<!`)`(ffalm [a-z][^`]*)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    line: int
    language: str
    code: str
    title: str | None = None  # the file that it is
    not_run: str | None = None  # why it cannot run


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order, set-up included."""
    text, found = page.read_text(encoding="utf-8"), []
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["setup"] is not None:
            found.append(Block(line, "python", part["setup"]))
            continue
        reason = _NOT_RUN.search(text, 0, part.start())
        code = textwrap.dedent(part["code"])
        found.append(Block(line, part["language"], code, part["title"], reason["reason"] if reason else None))
    return found


def fences(page: Path) -> int:
    """How many lines of a page open or close a block, as a check that none was overlooked."""
    return len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE))


def inline_commands(page: Path) -> Iterator[list[str]]:
    """Commands of ours in the running text, where they are more than a name."""
    for found in _INLINE.finditer(_PART.sub("", page.read_text(encoding="utf-8"))):
        yield from commands(found[1].replace("...", ""))


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a shell block as lists of words; a pipe or a semicolon is no part of our examples."""
    for line in code.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word == ">":
                break
            if word == "&&":
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words
