"""`ffalm federate` as far as it goes without Flower's processes; those are in tests/federate."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.federate.deploy.processes import free_port
from ffalm.federate.run_notice import keep_notice


@pytest.fixture
def demo(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "demo"
    code, _, said = cli("federate", "init", path, "--demo", "census", "--rows", "600", "--rounds", "3")
    assert code == 0, said
    return path


def test_without_a_command_it_shows_the_help_and_no_empty_mistake(cli: Cli) -> None:
    code, shown, said = cli("federate")
    assert code == 2
    assert "coordinator" in shown
    assert said.strip() in ("", shown.strip())


def test_the_demonstration_is_ready_and_says_what_to_do_next(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "demo"
    code, out, _ = cli("federate", "init", path, "--demo", "census", "--rows", "600")
    assert code == 0
    assert f"ffalm federate run {path} --local" in out
    agreed = tomllib.loads((path / "federation.toml").read_text())
    assert agreed["sites"] == ["north", "south", "west"]
    assert agreed["algorithm"]["preset"] == "safe"
    assert agreed["target"] == "dpd <= 0.05"
    assert (path / "sites" / "north" / "people.csv").exists()
    assert (path / "sites" / "south" / "people.parquet").exists()


def test_commands_to_copy_hold_where_a_folder_has_spaces(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "ward 7" / "demo"
    _, out, _ = cli("federate", "init", path, "--demo", "census", "--rows", "600")
    assert f"ffalm federate run '{path}' --local" in out
    assert f"ffalm federate coordinator '{path}'" in cli("federate", "run", path)[2]


def test_flags_go_over_the_file_and_the_file_over_the_defaults(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "agreed.toml"
    file.write_text('[data]\nlabel = "paid"\ngroup = "sex"\n[training]\nrounds = 7\nlr = 0.2\n')
    code, _, said = cli(
        *("federate", "init", tmp_path / "clinics", "--sites", "a,b,c", "--config", file, "--rounds", "9"),
        *("--algorithm", "fedavg", "--address", "fair.example:19000", "--set", "rules.min_sites=3"),
        *("--target", "eod <= 3%", "--repair", "single", "--confidence", "0.9"),
    )
    assert code == 0, said
    agreed = tomllib.loads((tmp_path / "clinics" / "federation.toml").read_text())
    assert (agreed["training"]["rounds"], agreed["training"]["lr"]) == (9, 0.2)
    assert agreed["algorithm"]["name"] == "fedavg"
    assert agreed["address"] == "fair.example:19000"
    assert agreed["rules"]["min_sites"] == 3
    assert agreed["name"] == "clinics"
    assert (agreed["target"], agreed["repair"], agreed["confidence"]) == ("eod <= 0.03", "single", 0.9)
    assert "eod <= 0.03" in (tmp_path / "clinics" / "sites" / "a" / "INSTRUCTIONS.md").read_text()


def test_a_demonstration_with_differential_privacy_has_no_target(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli(
        *("federate", "init", tmp_path / "demo", "--demo", "census", "--rows", "600", "--set", "privacy.noise=1.0")
    )
    assert code == 0, said
    assert "target" not in tomllib.loads((tmp_path / "demo" / "federation.toml").read_text())


def test_a_federation_is_never_written_over(cli: Cli, demo: Path) -> None:
    before = (demo / "coordinator" / "ca.key").read_bytes()
    code, _, said = cli("federate", "init", demo, "--demo", "census")
    assert code == 2
    assert "never written over" in said
    assert (demo / "coordinator" / "ca.key").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--demo", "censsus"], "did you mean 'census'"),
        (["--demo", "census", "--sites", "0"], "at least one site"),
        (["--label", "paid", "--group", "sex"], "--sites north,south,west"),
        (["--sites", "a,b"], "label"),
        (["--sites", "a,a", "--label", "paid", "--group", "sex"], "different names"),
        (["--sites", "a/b,c", "--label", "paid", "--group", "sex"], "letters, digits"),
        (["--sites", "a,b", "--label", "paid", "--group", "sex", "--data", "loans.csv"], "loans.csv"),
        (["--sites", "a,b", "--label", "paid", "--group", "sex", "--address", "here"], "HOST:PORT"),
        (["--sites", "a,b", "--label", "paid", "--group", "sex", "--set", "rules"], "--set takes a setting"),
        (["--sites", "a,b", "--label", "paid", "--group", "sex", "--set", "rules.min_site=1"], "min_sites"),
        (["--demo", "census", "--algorithm", "ffam"], "ffalm"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence_and_nothing_is_written(
    cli: Cli, tmp_path: Path, flags: list[str], words: str
) -> None:
    code, _, said = cli("federate", "init", tmp_path / "x", *flags)
    assert code == 2
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "command", [["run"], ["run", "--local"], ["status"], ["stop"], ["coordinator"], ["site"]], ids=" ".join
)
def test_a_folder_that_is_no_federation_is_named(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    name, *flags = command
    code, _, said = cli("federate", name, tmp_path / "nowhere", *flags)
    assert code == 2
    assert "nowhere" in said
    assert said.count("\n") == 1


def test_without_a_coordinator_a_run_says_how_to_start_one(cli: Cli, demo: Path) -> None:
    code, _, said = cli("federate", "run", demo)
    assert code == 2
    assert "ffalm federate coordinator" in said and "--local" in said


@pytest.mark.parametrize("command", [["coordinator"], ["run", "--local"], ["run"]], ids=" ".join)
def test_a_slip_in_the_settings_is_told_before_anything_starts(cli: Cli, demo: Path, command: list[str]) -> None:
    file = demo / "federation.toml"
    file.write_text(file.read_text().replace("min_sites", "min_site"))
    name, *flags = command
    code, _, said = cli("federate", name, demo, *flags)
    assert code == 2
    assert f"'min_site': did you mean 'min_sites'? (In {file}.)" in said
    assert not (demo / "coordinator" / "superlink.log").exists()


def test_what_cannot_go_together_is_refused(cli: Cli, demo: Path) -> None:
    code, _, said = cli("federate", "run", demo, "--local", "--detach")
    assert code == 2
    assert "--detach" in said


def test_a_run_takes_a_target_into_the_settings_and_leaves_the_rest(cli: Cli, demo: Path) -> None:
    file = demo / "federation.toml"
    file.write_text("# agreed in May\n" + file.read_text())
    before = tomllib.loads(file.read_text())
    for given, kept in (("eod <= 3%", "eod <= 0.03"), ("none", "none")):
        assert cli("federate", "run", demo, "--target", given)[0] == 2  # there is no coordinator
        assert tomllib.loads(file.read_text()) == {**before, "target": kept}
        assert "# agreed in May" in file.read_text()
    code, _, said = cli("federate", "run", demo, "--target", "eod < 0.03")
    assert code == 2 and "written with <=" in said


def test_a_run_that_began_with_another_target_refuses_a_new_one(cli: Cli, demo: Path) -> None:
    file, run = demo / "federation.toml", demo / "run"
    run.mkdir()
    (run / "config.toml").write_text(file.read_text())
    before = file.read_text()
    code, _, said = cli("federate", "run", demo, "--target", "eod <= 0.03")
    assert code == 2 and "began with the target dpd <= 0.05" in said
    assert file.read_text() == before
    assert "ffalm federate coordinator" in cli("federate", "run", demo, "--target", "dpd <= 5%")[2]


def test_a_site_whose_settings_are_wrong_is_told_before_it_starts(cli: Cli, demo: Path) -> None:
    site = demo / "sites" / "north"
    (site / "site.toml").write_text('name = "north"\n[data]\nfil = "people.csv"\n')
    code, _, said = cli("federate", "site", site)
    assert code == 2
    assert "did you mean 'file'" in said
    assert not (site / "supernode.log").exists()


def test_a_site_whose_file_is_missing_is_told_before_it_starts(cli: Cli, demo: Path) -> None:
    (demo / "sites" / "north" / "people.csv").unlink()
    code, _, said = cli("federate", "site", demo / "sites" / "north")
    assert code == 2
    assert "people.csv" in said
    assert not (demo / "sites" / "north" / "supernode.log").exists()


def test_a_site_whose_file_is_a_folder_is_told_before_it_starts(cli: Cli, demo: Path) -> None:
    file = demo / "sites" / "north" / "people.csv"
    file.unlink()
    file.mkdir()
    code, _, said = cli("federate", "site", demo / "sites" / "north")
    assert code == 2
    assert "people.csv is no file: say in" in said


@pytest.mark.parametrize(
    ("file", "words"), [("node.key", "holds no private key that Flower takes"), ("ca.crt", "holds no certificate")]
)
def test_a_damaged_key_or_certificate_is_named_before_anything_starts(
    cli: Cli, demo: Path, file: str, words: str
) -> None:
    site = demo / "sites" / "north"
    (site / file).write_text("hello")
    code, _, said = cli("federate", "site", site)
    assert code == 2
    assert f"{file} {words}" in said
    assert not (site / "supernode.log").exists()


def test_a_port_in_use_is_named_before_anything_starts(cli: Cli, demo: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = (demo / "federation.toml").read_text().replace("127.0.0.1:18000", address)
        (demo / "federation.toml").write_text(text)
        code, _, said = cli("federate", "coordinator", demo, "--detach")
    assert code == 2
    assert f"cannot listen on {address} (Address already in use): stop the process that does" in said
    assert not (demo / "coordinator" / "superlink.log").exists()


def test_the_status_of_a_federation_at_rest(cli: Cli, demo: Path) -> None:
    code, out, _ = cli("federate", "status", demo, "--json")
    assert code == 0
    seen = json.loads(out)
    assert seen["coordinator"] is None
    assert seen["sites"]["north"] == {"status": "unknown", "process": None}
    assert (seen["training"], seen["round"], seen["rounds"]) == ("not started", 0, 3)
    code, out, _ = cli("federate", "status", demo)
    assert "is not running" in out and "Training not started, round 0/3." in out


def test_the_status_of_a_site_on_its_own_machine(cli: Cli, demo: Path) -> None:
    site = demo / "sites" / "north"
    code, out, _ = cli("federate", "status", site)
    assert code == 0
    assert "The site north of the coordinator at 127.0.0.1:18000 is not running" in out
    seen = json.loads(cli("federate", "status", site, "--json")[1])
    assert (seen["site"], seen["process"], seen["notice"]) == ("north", None, None)
    keep_notice(site, "This site takes part in the run 'a' of 'demo'.")
    called = site / "coordinator.toml"
    called.write_text(called.read_text().replace("18000", str(free_port())))
    told = cli("federate", "status", site)[1]
    assert "The coordinator cannot be reached: nothing listens there; is the coordinator running" in told
    assert "Last word of a run, 20" in told and ": This site takes part in the run 'a' of 'demo'." in told


def test_the_status_of_an_interrupted_training_shows_its_last_metrics(cli: Cli, demo: Path) -> None:
    (demo / "run").mkdir()
    scored = {"round": 1, "accuracy": 0.8, "dpd": 0.1, "eod": None, "train_loss": 0.5, "seconds": 1.0}
    lines = [json.dumps(scored), json.dumps({"round": 2, "train_loss": 0.4, "seconds": 1.0}), '{"round": 3, "tr']
    (demo / "run" / "history.jsonl").write_text("\n".join(lines))
    code, out, _ = cli("federate", "status", demo, "--json")
    seen = json.loads(out)
    assert (seen["training"], seen["round"]) == ("interrupted", 2)
    assert seen["metrics"] == {"round": 1, "accuracy": 0.8, "dpd": 0.1, "eod": None}
    code, out, _ = cli("federate", "status", demo)
    assert code == 0
    assert "accuracy 80.0, dpd 10.0 (%)" in out


def test_stopping_what_is_nowhere_does_not_propose_to_make_it(cli: Cli, tmp_path: Path) -> None:
    code, _, said = cli("federate", "stop", tmp_path / "nowhere")
    assert code == 2
    assert "There is no folder" in said and "init" not in said


def test_stopping_what_does_not_run_says_so(cli: Cli, demo: Path) -> None:
    for folder in (demo, demo / "sites" / "north"):
        code, out, _ = cli("federate", "stop", folder)
        assert code == 0
        assert "Nothing of" in out


def test_without_flower_every_command_says_what_to_install(
    cli: Cli, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (
        ["init", tmp_path / "new"],
        ["coordinator", demo],
        ["site", demo / "sites" / "north"],
        ["run", demo],
    ):
        code, _, said = cli("federate", *command)
        assert code == 2
        assert "pip install 'ffalm[flower]'" in said


def test_every_command_has_an_example(cli: Cli) -> None:
    for command in ("init", "coordinator", "site", "run", "status", "stop"):
        code, out, _ = cli("federate", command, "--help")
        assert code == 0
        assert "Example: ffalm federate" in out
