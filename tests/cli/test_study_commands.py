"""`ffalm run` and `ffalm compare`, as a user meets them."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffalm.cli.flags import alphas_of, literal, seeds_of
from ffalm.errors import UserError

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

FILES = {
    "config.toml",
    "study.json",
    "tables.md",
    "tables.tex",
    "tables.csv",
    "curves.svg",
    "report.html",
}


def test_run_leaves_a_complete_run_folder(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, shown, _ = cli("run", *flags, "--algorithm", "ffalm", "--out", out)
    assert code == 0
    assert "FFALM (safe)" in shown
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    own = {"history.jsonl", "checkpoint", "checksums.json", "model.safetensors", "scores.safetensors", "result.json"}
    own |= {"encoding.json"}
    assert names == FILES | own
    assert len((out / "history.jsonl").read_text().splitlines()) == 4


def test_compare_puts_its_algorithms_in_one_table_and_answers_the_default_target(
    cli: Cli, flags: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, shown, _ = cli("compare", *flags, "--rounds", "2", "--seeds", "2", "--alpha", "1,5", "--out", out)
    assert code == 0
    assert all(name in shown for name in ("FedAvg", "FairFed", "FPFL", "FFALM (safe)"))
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == FILES | {"answer.json", "runs"}
    assert len(list((out / "runs").iterdir())) == (4 + 2) * 2 * 2
    assert "Answer to dpd <= 0.05 (alpha 1)" in shown
    assert [one["alpha"] for one in json.loads((out / "answer.json").read_text())["answers"]] == [1, 5]


def test_an_answer_that_can_be_used_ends_with_how(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    few = [*flags, "--algorithms", "fedavg", "--rounds", "5", "--lr", "0.5", "--seeds", "1", "--target"]
    for bound, told in (("0.9", True), ("0.0001", False)):
        out = tmp_path / bound
        code, shown, _ = cli("compare", *few, f"accuracy_parity <= {bound}", "--repair", "none", "--out", out)
        assert code == 0
        assert (f"Next: `ffalm predict {out} NEW.csv`" in shown) is told
    code, shown, _ = cli(
        "compare",
        *few,
        "dpd <= 0.5, impact_ratio >= 0.01",
        "--confidence",
        "0.5",
        "--out",
        out := tmp_path / "by group",
    )
    (answer,) = json.loads((out / "answer.json").read_text())["answers"]
    assert answer["repair"]["kind"] == "groups", answer["repair"]
    assert f"Next: `ffalm predict '{out}' NEW.csv --group COLUMN` labels new rows by the thresholds" in shown


def test_an_answer_about_images_ends_with_how_images_are_labelled(cli: Cli, tmp_path: Path) -> None:
    data = ["--data", "faces", "--set", "data.rows=300", "--model", "linear", "--clients", "2", "--partition", "even"]
    asked = ["--algorithms", "fedavg", "--target", "accuracy_parity <= 0.9", "--repair", "none", "--lr", "0.05"]
    code, shown, _ = cli("compare", *data, *asked, "--rounds", "4", "--seeds", "1", "--out", out := tmp_path / "out")
    assert code == 0 and f"Next: `ffalm predict {out} FOLDER` labels the images of a folder;" in shown, shown


LEFT_OUT = (
    "Left out: FairFed compares two groups and this data has 3: merge groups into two, or use ffalm or fpfl, "
    "which take any number."
)


def test_algorithms_that_nobody_named_are_left_out_where_they_cannot_take_the_groups(
    cli: Cli, flags: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    loud = [flag for flag in flags if flag != "--quiet"]
    code, shown, said = cli("compare", *loud, "--group", "branch", "--seeds", "1", "--out", out)
    assert code == 0
    assert "FPFL" in shown
    assert "FFALM (safe)" in shown
    assert f"Note: {LEFT_OUT}" in shown
    assert LEFT_OUT in said
    assert LEFT_OUT in (out / "report.html").read_text()
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        f"{name}-alpha-5-seed-0" for name in ("fedavg", "ffalm", "fpfl", "lagrangian-dp-0.025", "lagrangian-dp-0.05")
    ]
    same = [*flags, "--group", "branch", "--seeds", "1"]
    for settings in ([], same):
        code, shown, _ = cli("compare", *settings, "--out", out, "--resume", "--quiet", "--json")
        assert code == 0
        assert LEFT_OUT in json.loads(shown)["notes"]


@pytest.mark.parametrize(
    "named",
    [
        ["compare", "--algorithms", "fedavg,fairfed"],
        ["compare", "--set", "algorithms.fairfed.step=1.0"],
        ["run", "--algorithm", "fairfed"],
    ],
)
def test_an_algorithm_that_was_named_or_is_the_only_one_is_refused_where_it_cannot_take_the_groups(
    cli: Cli, flags: list[str], named: list[str], tmp_path: Path
) -> None:
    code, _, said = cli(*named, *flags, "--group", "branch", "--out", tmp_path / "out")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("ffalm: FairFed compares two groups and this data has 3")
    assert not (tmp_path / "out").exists()


def test_one_group_of_a_table_can_be_compared_with_the_rest(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    merged = ["--group", "branch", "--set", "data.against_rest=west"]
    assert cli("run", *flags, *merged, "--out", out)[0] == 0
    assert tomllib.loads((out / "config.toml").read_text())["data"]["against_rest"] == ["west"]
    page = (out / "report.html").read_text()
    assert "branch: rest, west" in page
    assert "which is 'north', 'south'." in html.unescape(page)


def test_json_holds_every_run(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    code, shown, _ = cli(
        "compare", *flags, "--algorithms", "fedavg,fpfl", "--seeds", "2", "--out", tmp_path / "o", "--json"
    )
    assert code == 0
    runs = json.loads(shown)["runs"]
    assert [(run["algorithm"], run["seed"]) for run in runs] == [("fedavg", 0), ("fedavg", 1), ("fpfl", 0), ("fpfl", 1)]
    assert all(0 <= run["test"]["accuracy"] <= 1 for run in runs)


def test_the_written_configuration_gives_the_same_numbers_again(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert cli("run", *flags, "--out", first)[0] == 0
    assert cli("run", "--config", first / "config.toml", "--out", again, "--quiet")[0] == 0
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    results = [json.loads((out / "result.json").read_text())["test"] for out in (first, again)]
    assert results[0] == results[1]


def test_flags_override_the_file(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('seeds = [5]\n[training]\nrounds = 9\nlr = 0.01\n[algorithms.mine]\nname = "fpfl"\npenalty = 1.0\n')
    out = tmp_path / "out"
    assert cli("compare", *flags, "--config", file, "--set", "training.lr_step=2", "--out", out)[0] == 0
    stored = tomllib.loads((out / "config.toml").read_text())
    assert stored["training"]["rounds"] == 4
    assert stored["training"]["lr"] == 0.01
    assert stored["training"]["lr_step"] == 2
    assert stored["seeds"] == [5]
    assert stored["algorithms"]["mine"]["penalty"] == 1.0


def _without_clients(flags: list[str]) -> list[str]:
    place = flags.index("--clients")
    return flags[:place] + flags[place + 2 :]


def test_an_owner_column_makes_natural_silos(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("run", *_without_clients(flags), "--owner", "branch", "--out", out)[0] == 0
    assert tomllib.loads((out / "config.toml").read_text())["partition"]["kind"] == "silos"
    assert "north" in (out / "report.html").read_text()


def test_owners_and_a_number_of_clients_contradict_each_other(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    mine = _without_clients(flags)
    code, _, said = cli("run", *mine, "--owner", "branch", "--alpha", "0.5", "--out", out)
    assert (code, said.strip()) == (
        2,
        "ffalm: --owner says who the clients are: leave --alpha out, or name a --partition as well.",
    )
    assert cli("run", *mine, "--owner", "branch", "--clients", "3", "--partition", "iid", "--out", out)[0] == 0


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ("--partition iid --alpha 3", "the partition 'iid' does not use it: leave --alpha out."),
        ("--partition iid --set partition.alpha=[0.3,5]", "The setting 'alpha' would change nothing, since the"),
        ("--preset paper", "none of these algorithms has presets"),
        ("--target none --repair single", "there is no fairness target: name one with --target"),
        ("--target none --confidence 0.9", "there is no fairness target: name one with --target"),
        ("--target none --target-scope sites", "there is no fairness target: name one with --target"),
        ("--target-scope both", "name its owner column"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(cli: Cli, tmp_path: Path, added: str, reason: str) -> None:
    few = ["compare", "--algorithms", "fedavg", "--rounds", "1", "--seeds", "1", "--set", "data.rows=300"]
    code, _, said = cli(*few, *added.split(), "--out", tmp_path / "out")
    assert code == 2
    assert reason in said
    assert not (tmp_path / "out").exists()


def test_an_engine_that_needs_a_gpu_is_refused_before_anything_is_written(
    cli: Cli, flags: list[str], tmp_path: Path
) -> None:
    code, _, said = cli("run", *flags, "--engine", "graphed", "--device", "cpu", "--out", tmp_path / "out")
    assert (code, said.strip()) == (2, "ffalm: The engine 'graphed' needs a GPU: use device cuda, or another engine.")
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_stacked_is_refused_before_anything_is_written(cli: Cli, tmp_path: Path) -> None:
    asked = ["--data", "faces", "--set", "data.rows=200", "--image-size", "32", "--model", "resnet18", "--clients", "2"]
    code, _, said = cli("run", *asked, "--engine", "stacked", "--device", "cpu", "--quiet", "--out", tmp_path / "out")
    assert (code, said.strip()) == (
        2,
        "ffalm: The model ResNet cannot be stacked: its layer 'bn1' (BatchNorm2d) mixes the rows of a batch; "
        "use engine='loop'.",
    )
    assert not (tmp_path / "out").exists()


def test_the_study_is_introduced_before_it_runs(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    loud = [flag for flag in flags if flag != "--quiet"]
    _, _, said = cli("run", *loud, "--algorithm", "ffalm", "--out", tmp_path / "out")
    assert "FFALM (safe): 1 run(s) of 4 rounds" in said
    assert "engine" in said
    assert "Clients of seed 0" in said
    assert "round 4/4" in said


def test_clients_of_many_groups_are_shown_as_far_as_a_terminal_has_room(
    cli: Cli, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    monkeypatch.setenv("COLUMNS", "80")
    table = pd.read_csv(flags[1])
    table["town"] = [f"town {number % 12}" for number in range(len(table))]
    table.to_csv(flags[1], index=False)
    towns = [*(flag for flag in flags if flag != "--quiet"), "--group", "town", "--rounds", "1"]
    _, _, said = cli("run", *towns, "--algorithm", "fpfl", "--out", tmp_path / "out")
    assert "town 5" in said
    assert "town 6" not in said
    assert "…" not in said
    assert "... and 6 more groups, which the report shows" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "group town 11" in page
    assert "dual of town 11" in page


def test_a_finished_study_is_not_done_twice(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("run", *flags, "--out", out)[0] == 0
    before = (out / "result.json").stat().st_mtime_ns
    assert cli("run", "--out", out, "--resume", "--quiet", "--workers", "1")[0] == 0
    assert (out / "result.json").stat().st_mtime_ns == before


def test_nothing_is_written_over(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("important")
    code, _, said = cli("run", *flags, "--out", out)
    assert code == 2
    assert "is not empty" in said
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    code, _, said = cli("run", *flags, "--out", out, "--resume")
    assert code == 2
    assert "holds no study" in said


def test_a_study_is_not_resumed_with_other_settings(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("run", *flags, "--out", out)[0] == 0
    code, _, said = cli("run", *flags, "--lr", "0.9", "--out", out, "--resume")
    assert code == 2
    assert "other settings" in said


def test_a_study_is_not_resumed_with_other_algorithms(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("compare", *flags, "--algorithms", "fedavg,fpfl", "--seeds", "1", "--out", out)[0] == 0
    code, _, said = cli("compare", "--algorithms", "fedavg", "--out", out, "--resume", "--quiet")
    assert code == 2
    assert "other settings" in said


def test_a_study_that_was_killed_as_it_began_can_be_resumed(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".config.toml.123").write_text("seeds = [")
    assert cli("run", *flags, "--out", out, "--resume")[0] == 0


def test_a_diverging_run_is_stopped_named_and_kept(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    wild = ["--lr", "1e30", "--set", "training.clip=none"]
    code, shown, said = cli("run", *flags, *wild, "--out", out)
    assert code == 4
    assert "diverged in round" in said
    assert "dual" in said
    assert "dual_bound" in said
    assert said.count("\n") == 1
    assert (out / "history.jsonl").read_text().count("\n") >= 1
    assert "diverged" in shown
    assert json.loads((out / "result.json").read_text())["diverged"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "fedproks"], "no algorithm 'fedproks'"),
        (["--algorithm", "ffalms"], "did you mean 'ffalm'"),
        (["--model", "mpl"], "did you mean 'mlp'"),
        (["--partition", "balnced"], "did you mean 'balanced'"),
        (["--alpha", "-1"], "'alpha' of partition must be above 0"),
        (["--alpha", "big"], "--alpha takes a number"),
        (["--clients", "5000"], "do not fit into"),
        (["--rounds", "0"], "must be 1 or more"),
        (["--device", "tpu"], "no device 'tpu'"),
        (["--device", "cuda:9"], "cuda"),
        (["--engine", "warp"], "no engine 'warp'"),
        (["--label", "payed"], "payed"),
        (["--group", "income"], "income"),
        (["--favourable", "maybe"], "maybe"),
        (["--set", "training.lr"], "--set takes a setting and its value"),
        (["--set", "training.lrr=1"], "did you mean 'lr'"),
        (["--preset", "saef"], "did you mean 'safe'"),
        (["--config", "nowhere.toml"], "no configuration file"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--data", "adultt"], "did you mean 'adult'"),
        (["--resume"], "--resume needs the folder"),
        (["--ray", "127.0.0.1:1"], "Ray"),
        (["--alpha", "1,5"], "use `ffalm compare`"),
    ],
)
def test_a_mistake_costs_one_sentence_and_exit_code_2(
    cli: Cli, flags: list[str], arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, shown, said = cli("run", *flags, *arguments)
    assert code == 2, said
    assert words in said
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert shown == ""
    assert not (tmp_path / "ffalm-results").exists()


def test_a_group_that_no_client_has_is_refused(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    import pandas as pd

    table = pd.read_csv(flags[1])
    table["part"] = ["test"] * 40 + ["validation"] * 40 + ["train"] * 320
    table.loc[80:, "sex"] = "f"
    table.to_csv(flags[1], index=False)
    code, _, said = cli("run", *flags, "--set", "data.split=part", "--out", tmp_path / "out")
    assert code == 2
    assert "group" in said


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("income", float("nan"), "income"),
        ("income", float("inf"), "income"),
        ("paid", "perhaps", "perhaps"),
        ("paid", None, "paid"),
    ],
)
def test_a_table_that_cannot_be_used_costs_one_sentence(
    cli: Cli, flags: list[str], column: str, value: object, words: str, tmp_path: Path
) -> None:
    import pandas as pd

    table = pd.read_csv(flags[1])
    table[column] = table[column].astype(object)
    table.loc[7, column] = value
    table.to_csv(flags[1], index=False)
    code, _, said = cli("run", *flags, "--out", tmp_path / "out")
    assert code == 2
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_seeds_are_a_number_or_a_list() -> None:
    assert seeds_of("3") == [0, 1, 2]
    assert seeds_of("3,7") == [3, 7]
    assert seeds_of("4,") == [4]
    for wrong in ("0", "x", "", "1.5"):
        with pytest.raises(UserError):
            seeds_of(wrong)


def test_alphas_and_set_values_are_read_as_typed() -> None:
    assert alphas_of("0.3,1") == [0.3, 1.0]
    assert literal("3") == 3
    assert literal("[1, 2]") == [1, 2]
    assert literal("true") is True
    assert literal("some text") == "some text"


def test_a_folder_that_cannot_be_made_gets_one_sentence(cli: Cli, flags: list[str], loans: Path) -> None:
    for command in (["run", *flags], ["reproduce", "example"]):
        code, _, said = cli(*command, "--out", loans / "below" / "a" / "file")
        assert code == 2
        assert said.count("\n") == 1
        assert "cannot be made (not a directory): name another with --out" in said


@pytest.mark.parametrize("given", ["", ",", " , "])
def test_an_empty_list_of_algorithms_is_refused_rather_than_replaced(cli: Cli, given: str, tmp_path: Path) -> None:
    code, _, said = cli("compare", "--algorithms", given, "--out", tmp_path / "out")
    assert code == 2
    assert said.startswith("ffalm: --algorithms takes comma-separated names")
    assert cli("compare", "--preset", "", "--out", tmp_path / "out")[0] == 2
    assert not (tmp_path / "out").exists()


def test_flags_that_exclude_each_other_are_refused(cli: Cli) -> None:
    code, _, said = cli("run", "--local-epochs", "2", "--local-steps", "3")
    assert code == 2
    assert said == "ffalm: --local-epochs and --local-steps exclude each other: give one of them.\n"


def test_two_runs_that_start_in_the_same_second_have_folders_of_their_own(
    cli: Cli, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "20250101-000000")
    for algorithm in ("fedavg", "fpfl"):
        code, shown, said = cli("run", *flags, "--rounds", "1", "--algorithm", algorithm, "--json")
        assert code == 0, said
        assert json.loads(shown)["runs"][0]["algorithm"] == algorithm
    assert len(list((tmp_path / "ffalm-results").iterdir())) == 2


def test_a_report_is_made_again_from_the_folder_alone(cli: Cli, flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, shown, _ = cli("compare", *flags, "--algorithms", "fedavg,fpfl", "--seeds", "1", "--out", out)
    assert code == 0
    page = (out / "report.html").read_bytes()
    for name in FILES - {"config.toml", "study.json"}:
        (out / name).unlink()
    Path(flags[1]).unlink()  # the data is not needed any more
    code, again, _ = cli("report", out)
    assert (code, again) == (0, shown)
    assert (out / "report.html").read_bytes() == page
    without_torch = (
        "import sys; from ffalm.cli import run; sys.exit(run(['report', sys.argv[1]]) or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", without_torch, str(out)], capture_output=True, check=True)
    code, one, _ = cli("report", out / "runs" / "fpfl-alpha-5-seed-0", "--out", tmp_path / "one", "--json")
    assert code == 0
    assert [run["algorithm"] for run in json.loads(one)["runs"]] == ["fpfl"]
    assert (tmp_path / "one" / "report.html").exists()
    assert cli("report", tmp_path / "nowhere")[0] == 2


def test_every_setting_of_training_is_a_flag_that_takes_what_a_file_takes(cli: Cli) -> None:
    from dataclasses import fields

    from ffalm.cli.flags import overrides, study_flags
    from ffalm.engines import Training

    paths = {flag.path for flag in study_flags()}
    assert {f"training.{field.name}" for field in fields(Training)} <= paths
    given = {"clip": "none", "batch_size": "32", "lr": 0.1, "fresh_data": True}
    assert overrides(given) == {"training": {"batch_size": 32, "lr": 0.1, "clip": "none"}, "fresh_data": True}
    _, shown, _ = cli("compare", "--help")
    assert "Local epochs per round." in shown
