"""What benchmarks share: a process to measure in, and where tables go.

Each has its section in RESULTS.md, replaced whenever it is measured again.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


Case = TypeVar("Case")
Figures = TypeVar("Figures")


def alone(measure: Callable[[Case], Figures], case: Case) -> Figures:
    """Measure a case in a process of its own, so that memory and warm-up are that case's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case).result()


def machine() -> str:
    """When and where, in one line."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", info.read_text()) if info.is_file() else None
    processor = named.group(1) if named else platform.machine()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{datetime.date.today().isoformat()}; {processor}, {os.cpu_count()} cores; {versions}; load after: {load}."


def show(title: str, parts: list[str], write: bool) -> None:
    """Print what was found and, where asked, publish it."""
    body = "\n\n".join(parts)
    print(body)
    if write:
        publish(title, body)


def publish(title: str, body: str) -> None:
    """Put a section in the place of the one with its title, or at the end."""
    section = f"## {title}\n\n{body.strip()}\n"
    text = RESULTS.read_text()
    old = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if old is None:
        RESULTS.write_text(f"{text.rstrip()}\n\n{section}")
    else:
        after = text[old.end() :]
        RESULTS.write_text(text[: old.start()] + section + (f"\n{after}" if after else ""))
