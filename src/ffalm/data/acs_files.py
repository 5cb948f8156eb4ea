"""The census PUMS person files as their publisher names them: found in a folder, read, and downloaded."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd

from ffalm.data.acs_tasks import RENAMED, STATES
from ffalm.data.download import Publication, PublishedFile
from ffalm.errors import UserError, require, require_known

PAGE = "https://www.census.gov/programs-surveys/acs/microdata.html"
SITE = "https://www2.census.gov/programs-surveys/acs/data/pums"
YEAR = 2018

_ADJUSTMENT = "ADJINC"  # of incomes: one number for a survey year, another for the next
_WHOLE = "US"  # the country in one archive, or in files a, b, ...
_ARCHIVE = re.compile(r"csv_p([a-z]{2})\.zip")
_TABLE = re.compile(r"psam_p(?:(\d\d)|us[a-d])\.csv|ss\d\dp([a-z]{2})[a-d]?\.csv")  # since 2017, and before
_CODES = {name: number for number, name in STATES.items()}


def person_files(root: str, states: Sequence[str] = ()) -> list[Path]:
    """The person files in a folder, of these states or of all; a table is preferred to the archive that holds it.

    Files of the whole country are used if there are none of single states.
    """
    folder = Path(root).expanduser()
    for name in states:
        known_state(name)
    require(
        folder.is_dir(), f"There is no folder {root!r}: get files with `ffalm data get acs --states CA --root DIR`."
    )
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir(), key=lambda one: (one.suffix, one.name)):
        state = _state_of(path.name)
        if state is not None and all(one.suffix == path.suffix for one in found.get(state, ())):
            found.setdefault(state, []).append(path)
    whole = found.pop(_WHOLE, [])
    if not found and whole:
        return whole
    missing = [name for name in states if name not in found]
    require(
        bool(found) and not missing,
        f"The folder {root!r} has no PUMS person file{f' of {missing[0]}' if missing else ''}, such as psam_p06.csv or "
        f"csv_pca.zip: get it with `ffalm data get acs --states {missing[0] if missing else 'CA'} --root {root}`.",
    )
    return [path for state, paths in sorted(found.items()) if not states or state in states for path in paths]


def read_files(
    paths: Sequence[Path],
    columns: Sequence[str],
    kept: Callable[[pd.DataFrame], pd.Series] | None,
    states: Sequence[str] = (),
) -> tuple[pd.DataFrame, int]:
    """Persons of all files, which must be of one survey year, and how many the files hold; see `read_persons`.

    Of named states: each must have persons, which files of other states or of a part of the country may lack.
    """
    files = [read_persons(path, columns, kept, states) for path in paths]
    present = {state for file in files for state in file.attrs["states"]}
    absent = [state for state in states if _CODES[state] not in present]
    require(
        not absent,
        f"The PUMS person files in {str(paths[0].parent)!r} hold nobody of {', '.join(absent)}: get the file with "
        f"`ffalm data get acs --states {','.join(absent)}`, into a folder of its own if these cover the country.",
    )
    years = {path: years for path, file in zip(paths, files, strict=True) if (years := file.attrs["years"])}
    first = next(iter(years), None)
    other = next((path for path in years if first and years[path] != years[first]), None)
    require(
        other is None,
        f"{str(first)!r} and {str(other)!r} are of different survey years, by their column {_ADJUSTMENT}: keep the "
        "files of each year in a folder of its own.",
    )
    return pd.concat(files, ignore_index=True), sum(file.attrs["rows"] for file in files)


def read_persons(
    path: Path,
    columns: Sequence[str],
    kept: Callable[[pd.DataFrame], pd.Series] | None,
    states: Sequence[str] = (),
) -> pd.DataFrame:
    """Columns of a person file as float32, in which all codes are exact, only of rows for which `kept` is true.

    Its `attrs` are the number of `rows` of these states, or of all, the `states` by their numbers, and the adjustments
    of incomes by which survey `years` are known, none if the file lacks them.
    """
    tables = [_read(path, member, columns) for member in _members(path)]
    frame = pd.concat(tables, ignore_index=True)
    if states:
        frame = frame[frame["ST"].isin([_CODES[state] for state in states])].reset_index(drop=True)
    facts = {"rows": len(frame), "states": sorted(set(frame["ST"]))}
    facts["years"] = sorted(set(frame.pop(_ADJUSTMENT).dropna())) if _ADJUSTMENT in frame else []
    chosen = frame if kept is None else frame[kept(frame).to_numpy()].reset_index(drop=True)
    chosen.attrs |= facts
    return chosen


def publication(states: Sequence[str], year: int) -> Publication:
    """The archives of some states, one-year survey; the publisher gives no checksums."""
    require(bool(states), "Name the states whose files to download, such as --states CA,TX, or --states all.")
    require(2000 <= year <= 2100, f"The year of the survey must be a number such as {YEAR}; got {year}.")
    chosen = sorted(set(STATES.values()) - {"PR"}) if [one.lower() for one in states] == ["all"] else list(states)
    names = [f"csv_p{known_state(state).lower()}.zip" for state in chosen]
    return Publication(PAGE, tuple(PublishedFile(name, f"{SITE}/{year}/1-Year/{name}") for name in names))


def known_state(name: str) -> str:
    """The postal code of a state."""
    require_known("state", _CODES, name.upper())
    return name.upper()


def _state_of(name: str) -> str | None:
    """The state of a person file by its name; None for other files."""
    archive, table = _ARCHIVE.fullmatch(name.lower()), _TABLE.fullmatch(name.lower())
    if archive is None and table is None:
        return None
    number, letters = (None, archive[1]) if archive is not None else table.groups() if table is not None else ("", "")
    if number:
        return STATES.get(int(number))
    state = (letters or _WHOLE).upper()
    return state if state in _CODES or state == _WHOLE else None


def _members(path: Path) -> list[str | None]:
    """The tables in an archive; None for a file that is a table itself."""
    if path.suffix != ".zip":
        return [None]
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if _TABLE.fullmatch(Path(name).name.lower())]
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"The archive {str(path)!r} cannot be read ({error}): download it again.") from None
    require(bool(names), f"The archive {str(path)!r} holds no person file such as psam_p06.csv: download it again.")
    return list(names)


def _read(path: Path, member: str | None, columns: Sequence[str]) -> pd.DataFrame:
    try:
        with _opened(path, member) as file:
            header = pd.read_csv(file, nrows=0).columns
        present = {name: name if name in header else RENAMED.get(name, name) for name in columns}
        missing = [name for name, own in present.items() if own not in header]
        require(
            not missing,
            f"The file {str(path)!r} has no column {', '.join(missing)}: PUMS person files have the columns that the "
            "Census Bureau names, such as SEX and RAC1P.",
        )
        if _ADJUSTMENT in header:
            present[_ADJUSTMENT] = _ADJUSTMENT
        with _opened(path, member) as file:
            table = pd.read_csv(file, usecols=list(present.values()), dtype=np.float32)
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{str(path)!r} is not a PUMS person file as published: {reason}.") from None
    return table.rename(columns={own: name for name, own in present.items()})[list(present)]


@contextmanager
def _opened(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """A table, alone or in its archive."""
    if member is None:
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            yield file
