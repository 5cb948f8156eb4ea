"""Plugin files: imported once, under a name that every process derives from the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ffalm.errors import UserError
from ffalm.plugins import attributed, blamed, import_plugin, imported


def test_a_plugin_is_imported_once_and_found_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"print({folder!r})")
    for folder in ("a", "b", "a"):
        import_plugin(tmp_path / folder / "mine.py")
    assert capsys.readouterr().out.split() == ["a", "b"]
    assert sum(name.startswith("ffalm_plugin_mine_") for name in sys.modules.keys() - before) == 2


def test_a_file_that_is_missing_or_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no plugin file"):
        import_plugin(tmp_path / "nowhere.py")
    (tmp_path / "settings.toml").write_text("a = 1")
    with pytest.raises(UserError, match=r"settings\.toml is not a Python file"):
        import_plugin(tmp_path / "settings.toml")
    (tmp_path / "broken.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be used: ZeroDivisionError"):
            import_plugin(tmp_path / "broken.py")


def test_a_plugin_that_exits_does_not_end_the_command(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(UserError, match="cannot be used: SystemExit: 3"):
        import_plugin(tmp_path / "exits.py")


def test_an_error_in_a_plugins_code_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def fail():\n    return [][1]\n")
    import_plugin(tmp_path / "fails.py")
    (name,) = (name for name in sys.modules if name.startswith("ffalm_plugin_fails"))
    with pytest.raises(IndexError) as caught:
        sys.modules[name].fail()
    assert f"IndexError in line 2 of the plugin {tmp_path / 'fails.py'}" in str(blamed(caught.value))
    assert blamed(ValueError("ours")) is None


def test_a_worker_raises_a_plugins_error_with_its_line_and_any_other_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text("def fail():\n    return {}['nothing']\n")
    import_plugin(tmp_path / "breaks.py")
    (name,) = (name for name in sys.modules if name.startswith("ffalm_plugin_breaks"))
    with pytest.raises(UserError, match=r"^KeyError in line 2 of the plugin .*breaks\.py: 'nothing'\.$"), attributed():
        sys.modules[name].fail()
    with pytest.raises(ValueError, match="ours"), attributed():
        raise ValueError("ours")


def test_an_entry_that_a_client_was_not_sent_is_explained(tmp_path: Path) -> None:
    (tmp_path / "unsent.py").write_text(
        "class Own:\n    broadcasts = ()\n    def objective(self, batch, state):\n        return state['dual']\n"
        "    def project(self, state):\n        return state['dual']\n"
    )
    import_plugin(tmp_path / "unsent.py")
    (name,) = (name for name in sys.modules if name.startswith("ffalm_plugin_unsent"))
    own = sys.modules[name].Own()
    with (
        pytest.raises(UserError, match=r"'dual'\. Clients receive those entries .* `broadcasts` names: none\.$"),
        attributed(),
    ):
        own.objective(None, {})
    with pytest.raises(UserError, match=r"unsent\.py: 'dual'\.$"), attributed():
        own.project({})


def test_another_process_is_told_which_files_to_import(tmp_path: Path) -> None:
    (tmp_path / "listed.py").write_text("")
    import_plugin(tmp_path / "listed.py")
    assert (tmp_path / "listed.py").resolve() in imported()
