"""Runs the blocks of a page in one folder: our commands in this process, others by themselves, Python in one namespace.

Training is made short, by few rounds, seeds and rows whatever a block asks for, unless the page is to run as it stands.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.blocks import ROOT, Block, commands

import ffalm
from ffalm.cli import run

_STUDIES = ("compare", "run", "sweep")
ROUNDS = "15"  # enough for models that are better than the most frequent label
_EXPECTED = re.compile(r"# -> (.+?)\s*$")


class PageRun:
    """One reader who follows a page from its top."""

    def __init__(self, folder: Path, short: bool) -> None:
        self.folder, self.short = folder, short
        self.names: dict[str, Any] = {"ffalm": ffalm, "__name__": "__main__"}

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.title is not None:
            (self.folder / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "bash":
            for words in commands(block.code):
                self._command(words)
        elif block.language == "python":
            self._python(block.code)

    def _command(self, words: list[str]) -> None:
        if words[:2] == ["pip", "install"]:  # what is to be installed is here
            return
        if words[0] != "ffalm" or words[1] == "federate":  # a federation's processes outlive the command
            words = [sys.executable, "-m", *words] if words[0] == "ffalm" else words
            path = os.pathsep.join(
                [str(ROOT / "src"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            )
            words = [sys.executable, *words[1:]] if words[0] == "python" else words
            done = subprocess.run(words, cwd=self.folder, env={**os.environ, "PYTHONPATH": path}, check=False)
            assert done.returncode == 0, words
            return
        code = run([*words[1:], *self._shortened(words[1:])])
        assert code in ((0, 3) if "--fail-if" in words else (0,)), f"{words} ended with {code}"

    def _shortened(self, words: list[str]) -> list[str]:
        """The options that make a study small; where one is given twice, the last counts."""
        if not self.short or words[0] not in _STUDIES:
            return []
        seeds = [] if words[0] == "run" else ["--seeds", "2"]
        return ["--rounds", ROUNDS, *seeds, "--workers", "1", "--quiet"]

    def _python(self, code: str) -> None:
        """Run statement by statement; `# -> VALUE` behind an expression says what it gives."""
        if self.short:
            code = re.sub(r"\bseeds=\d+", "seeds=2", re.sub(r"\brounds=\d+", f"rounds={ROUNDS}", code))
        lines = code.splitlines()
        for node in ast.parse(code).body:
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), "block", "eval"), self.names)
                expected = _EXPECTED.search(lines[(node.end_lineno or 0) - 1])
                assert expected is None or repr(value) == expected[1], f"{ast.unparse(node)} is {value!r}"
            else:
                exec(compile(ast.Module([node], []), "block", "exec"), self.names)
