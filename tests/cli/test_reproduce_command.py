"""`ffalm reproduce`, as a user meets it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from ffalm.cli import run
from ffalm.cli.reproduce import _claimed
from ffalm.report.artifact import Artifact, write
from ffalm.report.tables import Column, Section, Table, row

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

TINY = [
    *("--scale", "smoke", "--seeds", "1", "--workers", "1", "--quiet", "--set", "training.rounds=2"),
    *("--set", "data.rows=200", "--set", "model.channels=[4]", "--set", "partition.clients=2"),
    *("--set", "partition.min_rows=2"),
]


def _written(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("result.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole table-2 at smoke scale; copy it before changing anything in it."""
    out = tmp_path_factory.mktemp("reproduced") / "out"
    assert run(["reproduce", "table-2", *TINY, "--out", str(out)]) == 0
    return out


def test_a_finished_table_is_shown_again_without_a_run_and_figure_2_shares_its_runs(
    cli: Cli, finished: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    before = _written(out)
    code, shown, said = cli("reproduce", "table-2", "--out", out, "--resume", "--quiet")
    assert code == 0, said
    assert "SMOKE" in shown
    assert "FFALM (paper)" in shown
    assert "Largest" in shown
    assert "What the paper leaves open" in shown
    assert len(before) == 4
    code, shown, said = cli("reproduce", "figure-2", "--out", out, "--resume", "--quiet")
    assert code == 0, said
    assert _written(out) == before
    assert (out / "figure-2" / "figure-2.svg").exists()


def test_an_interrupted_reproduction_goes_on_where_it_was(cli: Cli, finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    lost = next(out.rglob("fpfl*seed-0/result.json"))
    lost.unlink()
    before = _written(out)
    code, shown, said = cli("reproduce", "--out", out, "--resume", "--quiet", "--json")
    assert code == 0, said
    assert lost.exists()
    after = _written(out)
    assert {name: time for name, time in after.items() if name in before} == before
    (table,) = json.loads(shown)["experiments"]
    assert table["experiment"] == "table-2"
    assert [row["label"] for row in table["rows"]] == ["FedAvg", "FairFed", "FPFL", "FFALM (paper)"]
    assert all(row["paper"] is None for row in table["rows"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table-2"], "download UTKFace"),
        (["table-2", "--data-root", "nowhere"], "There is no folder"),
        (["table-2", "--scale", "smal"], "no scale 'smal'"),
        (["table2"], "did you mean 'table-2'"),
        ([], "Say what to reproduce"),
        (["table-2", "--scale", "smoke", "--partition", "plan"], "did you mean 'plain'"),
        (["table-2", "--scale", "smoke", "--seeds", "none"], "--seeds takes a number"),
        (["table-2", "--resume"], "--resume needs the folder"),
        (["table-2", "--scale", "smoke", "--vary", "partition"], "--vary changes nothing in table-2: leave it out."),
        (["table-2", "--scale", "smoke", "--algorithms", ","], "--algorithms is empty"),
        (["rate", "--seeds", "3"], "--seeds changes nothing in rate"),
        (["example", "--metric", "piecewise"], "--metric changes nothing in example"),
        (["example", "--data-root", "faces"], "--data-root changes nothing in example"),
        (["rate", "--set", "training.rounds=2"], "--set changes nothing in rate"),
        (["table-2", "--scale", "smoke", "--only", "utkface"], "--only changes nothing with --scale smoke"),
        (["sensitivity", "--scale", "smoke", "--algorithms", "ffalm"], "--algorithms changes nothing in sensitivity"),
        (["frontier", "--scale", "smoke", "--dual-bound", "1"], "--dual-bound changes nothing in frontier"),
    ],
)
def test_a_mistake_costs_one_sentence_and_leaves_nothing(
    cli: Cli, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, said = cli("reproduce", *arguments)
    assert code == 2, said
    assert words in said
    assert said.count("\n") == 1
    assert shown == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data-root", "data"], "No image in"),
        (["--scale", "smoke", "--device", "cuda:99"], "cuda"),
        (["--scale", "smoke", "--set", "model.weights=nowhere.pth"], "There is no file of weights"),
    ],
)
def test_a_mistake_that_only_the_study_finds_leaves_no_folder_to_stumble_over(
    cli: Cli, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "UTKFace").mkdir(parents=True)
    code, _, said = cli("reproduce", "table-2", *arguments, "--quiet", "--out", "out")
    assert code == 2, said
    assert words in said
    assert not (tmp_path / "out").exists()


def test_a_file_of_weights_is_found_again_from_another_folder(
    cli: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(next(finished.rglob("fedavg*/model.safetensors")), tmp_path / "start.safetensors")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    start = ("--algorithms", "fedavg", "--set", "model.weights=../start.safetensors")
    code, _, said = cli("reproduce", "table-2", *TINY, *start, "--out", tmp_path / "out")
    assert code == 0, said
    before = _written(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    code, _, said = cli("reproduce", "--out", tmp_path / "out", "--resume", "--quiet")
    assert code == 0, said
    assert _written(tmp_path / "out") == before


def test_nothing_is_written_over(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    code, _, said = cli("reproduce", "table-2", *TINY, "--out", tmp_path)
    assert code == 2
    assert "is not empty" in said
    code, _, said = cli("reproduce", "table-2", *TINY, "--out", tmp_path, "--resume")
    assert code == 2
    assert "holds no reproduction" in said


def test_help_lists_the_experiments_and_the_open_choices(cli: Cli) -> None:
    code, shown, _ = cli("reproduce", "--help")
    assert code == 0
    for word in ("table-2", "sensitivity", "--data-root", "--grouping", "--dual-data", "released-code"):
        assert word in shown


def test_a_user_who_stops_it_is_told_how_to_go_on(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ffalm.studies.workers.run_study", stopped)
    code, _, said = cli("reproduce", "table-2", *TINY, "--out", tmp_path / "out")
    assert code == 130
    assert f"resume with: ffalm reproduce table-2 --out {tmp_path / 'out'} --resume" in said


@pytest.mark.parametrize("name", ["example", "rate"])
def test_the_theory_needs_no_data(cli: Cli, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ffalm

    def made(folder: Path) -> Artifact:
        table = Table(f"The {name}", [Column("claim"), Column("computed")], [Section([row("F", "1")])])
        return write(Artifact(name, table.title, [table], ["n"]), folder)

    theory = ModuleType("ffalm.theory")
    vars(theory)[name] = made
    monkeypatch.setitem(sys.modules, "ffalm.theory", theory)
    monkeypatch.setattr(ffalm, "theory", theory, raising=False)
    code, shown, said = cli("reproduce", name, "--out", tmp_path / "out")
    assert code == 0, said
    assert f"The {name}" in shown
    assert (tmp_path / "out" / name / f"{name}.md").exists()
    assert cli("reproduce", "--out", tmp_path / "out", "--resume")[0] == 0


def test_reproductions_of_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    with _claimed(None, False, "reproduce-rate") as one, _claimed(None, False, "reproduce-rate") as other:
        assert [one.name, other.name] == ["reproduce-rate-now", "reproduce-rate-now-2"]
        (one / "reproduce.toml").write_text("")
    assert [path.name for path in (tmp_path / "ffalm-results").iterdir()] == ["reproduce-rate-now"]  # none left empty
