"""The outermost layer: help, exit codes, and what an import costs."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from ffalm import cli as command_line
from ffalm.cli.flags import prepare

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    "command", [[], ["run"], ["compare"], ["data"], ["data", "check"], ["data", "get"], ["algorithms"], ["watch"]]
)
def test_every_command_has_help_with_an_example(cli: Cli, command: list[str]) -> None:
    code, shown, _ = cli(*command, "--help")
    assert code == 0
    assert "Example: ffalm" in shown or "Start with ffalm compare" in shown


def test_no_command_shows_the_help(cli: Cli) -> None:
    code, shown, _ = cli()
    assert code == 0
    assert "compare" in shown


def test_the_version_is_shown(cli: Cli) -> None:
    assert cli("--version")[1].startswith("ffalm 0.")


def test_an_unknown_command_or_flag_gets_one_sentence(cli: Cli) -> None:
    for arguments in (["compair"], ["run", "--rouds", "3"], ["run", "--rounds", "many"]):
        code, _, said = cli(*arguments)
        assert code == 2
        assert said.count("\n") == 1


def test_a_bug_of_ours_keeps_its_traceback_and_exits_with_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(command_line, "app", broken)
    code, _, said = cli("data")
    assert code == 1
    assert "Traceback" in said
    assert "bug" in said


def test_importing_ffalm_and_its_command_line_does_not_import_torch() -> None:
    script = "import sys, ffalm, ffalm.cli; print([m for m in ('torch', 'pandas', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_collector_rests_when_the_command_ends() -> None:
    asked = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))"
    code = f"{asked}; from ffalm.cli import main; main()"
    told = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "True"


def test_a_disk_that_refuses_gets_one_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out/history.jsonl")

    monkeypatch.setattr(command_line, "app", full)
    code, _, said = cli("data")
    assert code == 2
    assert said == "ffalm: out/history.jsonl cannot be read or written: no space left on device.\n"


def test_streams_that_are_closed_or_full_and_a_terminal_of_no_width_change_no_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = io.StringIO()
    monkeypatch.setattr(full, "write", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")), raising=False)
    monkeypatch.setattr(sys, "argv", ["ffalm", "data", "describe", "nothing"])
    monkeypatch.setenv("COLUMNS", "0")
    for stream in (full, None):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", None)
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        assert ended.value.code == 2
        for opened in {sys.stdout, sys.stderr} - {full}:
            opened.close()
    assert "COLUMNS" not in os.environ


def test_a_command_in_a_folder_that_was_removed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2 and "was removed: change to another" in capsys.readouterr().err


def test_help_says_what_an_argument_is(cli: Cli) -> None:
    code, shown, _ = cli("reproduce", "--help")
    assert code == 0
    assert "What to reproduce, from the list above." in shown


def test_python_m_ffalm_is_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "ffalm", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("ffalm 0.")


def test_a_shell_completes_commands_and_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_FFALM_COMPLETE", "complete_bash")
    monkeypatch.setattr(sys, "argv", ["ffalm"])
    for words, expected in (("ffalm comp", "compare"), ("ffalm sweep --ov", "--over")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit):
            command_line.main()
        assert expected in capsys.readouterr().out.split()


def test_a_data_file_that_is_missing_is_what_is_told_first(cli: Cli) -> None:
    code, _, said = cli("compare", "--data", "nofile.csv")
    assert (code, said) == (2, "ffalm: There is no file 'nofile.csv': check the path.\n")
    code, _, said = cli("compare", "--data", "loans.xlsx")
    assert code == 2 and "neither a data source (`ffalm data` lists them) nor a table" in said


#: Options without which something is simply not done.
OFF_UNLESS_GIVEN = {
    "leave_out", "root", "label", "group", "favourable", "owner", "local_steps", "noise", "ray", "config", "set",
    "drop", "categorical",
    "plugin", "over", "at", "data_root", "only", "demo", "sites", "id_column", "test", "out", "target", "costs",
    "set_", "test_share", "track", "cost_false_favourable", "cost_false_unfavourable", "id", "confidence",
    "prediction", "score", "fail_if", "alpha", "model", "site", "states",
}  # fmt: skip


def test_help_tells_the_default_of_every_option() -> None:
    prepare(["run", "compare", "sweep", "check", "reproduce", "init"])
    silent = []

    def look(group: Any, path: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                look(command, f"{path} {name}")
            for option in command.params:
                given = option.default not in (None, [], ()) or option.is_flag if hasattr(option, "is_flag") else True
                told = "default" in (getattr(option, "help", "") or "").lower()
                if not (given or told or option.required or option.name in OFF_UNLESS_GIVEN):
                    silent.append(f"{path} {name} --{option.name}")

    look(typer.main.get_command(command_line.app), "ffalm")
    assert silent == []


@pytest.mark.parametrize(("command", "name"), [(["init"], "[file]"), (["federate", "rotate-key"], "[site]")])
def test_an_argument_that_may_be_left_out_stands_in_one_pair_of_brackets(
    cli: Cli, command: list[str], name: str
) -> None:
    """Typer puts them there; where a metavar has its own, some versions add theirs and others do not."""
    code, shown, _ = cli(*command, "--help")
    assert code == 0
    assert name in shown.lower() and "[[" not in shown


def test_ctrl_c_before_the_command_has_begun_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ffalm.__main__ import main

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ffalm.cli.main", interrupted)
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)  # a setting of the whole process, for other tests too
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
