"""Settings survive being written and read."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from ffalm.system import toml

_plain = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text())
_values = st.one_of(_plain, st.lists(st.integers(-99, 99), max_size=3))
_tables = st.dictionaries(st.text(), st.one_of(_values, st.dictionaries(st.text(), _values, max_size=3)), max_size=4)


@given(_tables)
def test_what_is_written_reads_back_the_same(settings: dict[str, object]) -> None:
    assert tomllib.loads(toml.dumps(settings)) == settings


def test_none_is_written_as_a_word() -> None:
    assert toml.dumps({"clip": None}) == 'clip = "none"\n'


def test_sections_come_after_plain_values() -> None:
    assert toml.dumps({"a": {"b": 1}, "c": 2}) == "c = 2\n\n[a]\nb = 1\n"
