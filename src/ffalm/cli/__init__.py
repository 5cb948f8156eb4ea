"""The command line.

Exit codes: 0 done, 1 a bug of ours, 2 a mistake that the user can fix, 3 a condition of an audit holds or a check of
the doctor fails, 4 a training that diverged, 130 stopped by the user, 141 the output pipe was closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable

import typer

from ffalm import __version__
from ffalm.cli import (
    algorithms_command,
    audit_command,
    data_commands,
    federate,
    leaderboard_command,
    model_commands,
    repair_command,
    reproduce,
    setting_commands,
    study_commands,
    sweep_command,
    watch_command,
)
from ffalm.cli.failures import explained
from ffalm.cli.flags import prepare
from ffalm.cli.running import Stopped
from ffalm.errors import UserError, require

app = typer.Typer(
    name="ffalm",
    help="Group-fair federated learning: train one classifier over many data owners so that it treats groups alike.",
    epilog="Start with `ffalm compare`. Exit codes: 0 success, 1 internal error (please report it), 2 invalid input, "
    "3 a condition of --fail-if holds or a check of `federate doctor` fails, 4 a training diverged (finished runs and "
    "the report are written), 130 interrupted, 141 output pipe closed.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
#: The commands in the order of the help, under its headings, each with an example.
COMMANDS: dict[str, tuple[tuple[Callable[..., None], str], ...]] = {
    "Train and compare": (
        (study_commands.compare, "ffalm compare --data loans.csv --label paid --group sex --favourable yes"),
        (study_commands.run, "ffalm run --algorithm ffalm --preset safe --rounds 30"),
        (sweep_command.sweep, 'ffalm sweep --algorithms lagrangian --over tolerance=0,0.02,0.05 --at "dpd <= 0.05"'),
        (watch_command.watch, "ffalm watch ffalm-results/compare-census-20250101-120000"),
        (study_commands.report, "ffalm report ffalm-results/compare-census-20250101-120000"),
    ),
    "Use the trained model": (
        (model_commands.predict, "ffalm predict ffalm-results/loans new.csv --group sex --out labels.csv"),
        (model_commands.card, "ffalm card ffalm-results/loans --out MODEL_CARD.md"),
        (model_commands.export, "ffalm export ffalm-results/loans model.onnx"),
    ),
    "Predictions of any model": (
        (
            audit_command.audit,
            "ffalm audit loans.csv --label paid --prediction said --group sex --favourable yes --fail-if 'dpd > 0.1'",
        ),
        (
            repair_command.repair,
            "ffalm repair scores.csv --label paid --score p --group sex --favourable yes --test-share 0.5",
        ),
    ),
    "Look up and set up": (
        (setting_commands.init, "ffalm init && ffalm compare --config ffalm.toml"),
        (algorithms_command.algorithms, "ffalm algorithms fcfl"),
        (setting_commands.models, "ffalm models"),
        (setting_commands.settings, "ffalm settings training"),
    ),
    "Benchmarks": (
        (leaderboard_command.leaderboard, "ffalm leaderboard --root data --out leaderboard"),
        (reproduce.reproduce, "ffalm reproduce table-2 --scale smoke"),
    ),
}
for _heading, _commands in COMMANDS.items():
    for _command, _example in _commands:
        app.command(epilog=f"Example: {_example}", rich_help_panel=_heading)(_command)
app.add_typer(federate.federate, name="federate", rich_help_panel="Train and compare")
app.add_typer(data_commands.data, name="data", rich_help_panel="Look up and set up")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ffalm {__version__}")
        raise typer.Exit


#: What Typer raises for a mistyped command line; newer versions bundle click, so it cannot be imported from there.
_MISTYPED: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Show the help where no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code; for a user's mistake, print one sentence."""
    try:
        require(not any("\0" in one for one in arguments), "An argument holds a null character: leave it out.")
        prepare(arguments)
        code = app(arguments, prog_name="ffalm", standalone_mode=False)
    except _MISTYPED as error:
        # Typer and click may both add a suggestion; one is enough.
        message = str(getattr(error, "message", error))
        text = message if "Did you mean" in message else error.format_message()  # type: ignore[attr-defined]
        if text.strip():  # empty for a group without a command, which shows its help
            _say(UserError(text))
        return 2
    except Stopped as stopped:
        _say(stopped)
        return 130
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # as in `ffalm data | head`
        return 141
    except SystemExit as leaving:  # rich exits with 1 once nobody reads its tables
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return 141
    except Exception as error:
        explanation = explained(error)
        if explanation is not None:
            _say(explanation)
            return error.exit_code if isinstance(error, UserError) else 2
        traceback.print_exc()
        _say("this is a bug of ours, not a mistake of yours; please report the lines above.")
        return 1
    return code if isinstance(code, int) else 0


def _say(text: object) -> None:
    """Print to standard error; if that fails, as on a full disk, the exit code still says what happened."""
    with contextlib.suppress(OSError):
        print(f"ffalm: {text}", file=sys.stderr)


def _open_streams() -> None:
    """Reopen streams that a daemon closed, or the next opened files would get their descriptors and our messages."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def main() -> None:
    """The entry point of the `ffalm` command."""
    _open_streams()
    try:
        os.getcwd()
    except OSError:  # torch would end the process
        _say("The folder that you are in was removed: change to another.")
        sys.exit(2)
    if not os.environ.get("COLUMNS", "").strip("0"):  # a terminal of width 0 would show nothing
        os.environ.pop("COLUMNS", None)
    if "_FFALM_COMPLETE" in os.environ:  # a shell wants completions of these words
        prepare(" ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")).split())
    # At exit, garbage collection would scan every object of torch twice and free nothing: 0.2 s.
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):  # escape what the terminal or file cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_flushed(run(sys.argv[1:])))


def _flushed(code: int) -> int:
    """Flush the output and return the exit code; what cannot be written is dropped, or Python would try it again."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        if code == 0:
            _say(explained(error))
            return 2
    return code
