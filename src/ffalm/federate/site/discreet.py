"""Sentences that leave a site: they say what is wrong, not where the site keeps its files or what these are called."""

from __future__ import annotations

import re
from pathlib import Path

from ffalm.federate.federation_config import LocalData

_IMAGE = re.compile(r"(['\"])[^'\"]+\.(?:jpe?g|png|gif|bmp|tiff?|webp|ppm|dcm)\1", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w/.])/[^\s'\",:;]+/[^\s'\",:;]+")


def discreet(sentence: str, folder: Path, data: LocalData | None = None) -> str:
    """The sentence with the places of the site's data, and names of images, put as what they are.

    `folder` is the site's own, whose files such as site.toml are called the same everywhere.
    """
    for what, place in sorted(_places(folder, data).items(), key=lambda named: -len(named[1])):
        for written in (repr(place), place):
            sentence = re.sub(rf"{re.escape(written)}(?:/[^'\":]*)?", f"(its {what})", sentence)
    sentence = _IMAGE.sub("(one of its files)", sentence.replace(f"{folder}/", ""))
    return _PATH.sub("(a path)", sentence)


def _places(folder: Path, data: LocalData | None) -> dict[str, str]:
    """Where the site's data is, by the setting that says so."""
    named = {what: getattr(data, what, None) for what in ("file", "folder", "labels")}
    return {what: str(folder / Path(name).expanduser()) for what, name in named.items() if name}
