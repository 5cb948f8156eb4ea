"""Reading, checking and writing a file of settings: what `federation.toml` and `site.toml` have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ffalm import config as study
from ffalm.errors import UserError, require, short_repr
from ffalm.plugins import import_plugin
from ffalm.settings import to_plain
from ffalm.system import toml
from ffalm.system.files import write_atomic

_BAD_PLUGIN = "It cannot import a file that its site.toml lists under 'plugins'; the site's own log says why."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class SettingsFile(ABC):
    """Settings with a file of their own."""

    @classmethod
    @abstractmethod
    def parse(cls, settings: Mapping[str, Any], folder: Path | None = None) -> Self:
        """Checked settings from nested ones; paths of plugins are relative to the folder of their file."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """The settings in a file, whose name is added to errors about them."""
        try:
            return cls.parse(study.read(file), file.parent)
        except UserError as error:
            if str(file) in str(error):
                raise
            raise UserError(f"{error} (In {file}.)", error.public) from None

    def settings(self) -> dict[str, Any]:
        """The complete nested settings: `parse` gives the object back, whatever the defaults become."""
        return to_plain(self)

    def write(self, file: Path) -> None:
        """Write the file that `read` reads."""
        write_atomic(file, toml.dumps(self.settings()))


def imported_plugins(settings: Mapping[str, Any], folder: Path | None) -> tuple[str, ...]:
    """The paths of the plugin files, after each is imported. An error may leave a site without its file and text."""
    named = settings.get("plugins", ())
    require(isinstance(named, list | tuple), f"The setting 'plugins' must be a list of files; got {short_repr(named)}.")
    paths = [(folder or Path()) / Path(str(name)).expanduser() for name in named]
    for path in paths:
        try:
            import_plugin(path)
        except UserError as error:
            raise UserError(str(error), _BAD_PLUGIN) from error
    return tuple(str(path) for path in paths)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that is not valid for a folder on every system."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"The name of a {kind} may have only letters, digits, '-' and '_', since folders are named after it; got "
            f"{name!r}."
        )
