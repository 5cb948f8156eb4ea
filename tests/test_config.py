"""A study from a TOML file: complete when written, checked when read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ffalm.algorithms import FFALM
from ffalm.config import parse, read
from ffalm.engines import Training
from ffalm.errors import UserError
from ffalm.settings import to_plain
from ffalm.system import toml
from ffalm.targets.candidates import lagrangians
from ffalm.targets.target import Target

SMALL: dict[str, Any] = {"algorithms": {"fedavg": {}, "ffalm": {"preset": "safe", "penalty": 3}}}


def test_the_written_settings_give_the_same_study_back() -> None:
    config = parse(
        {
            **SMALL,
            "seeds": [3, 1],
            "partition": {"alpha": [0.3, 5], "clients": 4},
            "training": {"clip": "none", "batch_size": "none", "local_steps": 3},
            "model": {"name": "mlp", "hidden": [8, 4]},
        }
    )
    assert parse(tomllib.loads(toml.dumps(config.to_plain()))) == config
    assert config.training == Training(clip=None, batch_size=None, local_steps=3)


def test_written_settings_name_every_setting_so_that_later_defaults_change_nothing() -> None:
    written = parse(SMALL).to_plain()
    assert set(written["training"]) == set(Training.__dataclass_fields__)
    assert written["algorithms"]["ffalm"]["dual_bound"] == 1.0


def test_a_preset_is_the_base_and_settings_go_on_top() -> None:
    ffalm = parse(SMALL).entries[1]
    assert ffalm.algorithm == FFALM(penalty=3.0, dual_lr=0.2, dual_lr_growth=1.0, dual_bound=1.0)
    assert ffalm.label == "FFALM (safe)"


def test_one_algorithm_can_stand_twice_under_its_own_names() -> None:
    config = parse({"algorithms": {"gentle": {"name": "ffalm", "penalty": 0.5}, "ffalm": {}}})
    assert [entry.label for entry in config.entries] == ["gentle", "FFALM (safe)"]


def test_a_section_without_a_preset_is_what_the_bare_name_stands_for_unless_it_is_complete() -> None:
    (entry,) = parse({"algorithms": {"ffalm": {"penalty": 3}}}).entries
    assert (entry.algorithm, entry.preset) == (FFALM.preset("safe", penalty=3.0), "safe")
    (entry,) = parse({"algorithms": {"ffalm": {"preset": "paper"}}}).entries
    assert entry.algorithm == FFALM()
    (entry,) = parse({"algorithms": {"ffalm": {"name": "ffalm", **to_plain(FFALM(penalty=3.0))}}}).entries
    assert (entry.algorithm, entry.preset) == (FFALM(penalty=3.0), None)  # as a study's folder has it


def test_what_aims_at_a_target_is_called_by_its_bound_unless_its_settings_are_others() -> None:
    aiming = lagrangians(Target.parse("dpd <= 0.05, eod <= 0.1"))
    config = parse({**SMALL, "algorithms": {**aiming, "lagrangian-dp-0.1": {"name": "lagrangian", "tolerance": 0.2}}})
    assert [entry.label for entry in config.entries] == [
        "Lagrangian (DP, EO ≤ 0.05)",
        "Lagrangian (DP, EO ≤ 0.025)",
        "lagrangian-dp-0.1",
    ]


def test_two_algorithms_that_tables_would_take_for_one_are_refused() -> None:
    with pytest.raises(UserError, match="both be called 'FedAvg'"):
        parse({"algorithms": {"fedavg": {}, "FedAvg": {"name": "fedprox", "mu": 5.0}}})


def test_two_algorithms_whose_run_folders_would_be_one_on_macos_are_refused() -> None:
    with pytest.raises(UserError, match="'Mine' and 'mine' differ in the case of letters alone"):
        parse({"algorithms": {"Mine": {"name": "fedavg"}, "mine": {"name": "fedprox"}}})


@pytest.mark.parametrize("key", ["a/b", "../a", ""])
def test_a_section_that_could_not_name_a_folder_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="run folders"):
        parse({"algorithms": {key: {"name": "fedavg"}}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algoritms": {}}, "did you mean 'algorithms'"),
        ({"algorithms": {"fedagv": {}}}, "did you mean 'fedavg'"),
        ({"algorithms": {"ffalm": {"preset": "saf"}}}, "did you mean 'safe'"),
        ({"algorithms": {"ffalm": {"penalti": 1}}}, "did you mean 'penalty'"),
        ({"algorithms": {"ffalm": {"penalty": "much"}}}, "must be of type float"),
        ({"algorithms": {"ffalm": {"penalty": -1}}}, "must be 0 or more"),
        ({"algorithms": {"ffalm": {"dual_bound": 0}}}, "must be above 0"),
        ({"algorithms": {"fairfed": {"step": float("nan")}}}, "must be 0 or more"),
        ({"algorithms": {}}, "at least one algorithm"),
        ({"algorithms": "fedavg"}, "must be a section"),
        ({**SMALL, "data": {"source": "cencus"}}, "did you mean 'census'"),
        ({**SMALL, "data": {"source": "census", "row": 3}}, "did you mean 'rows'"),
        ({**SMALL, "data": {"source": "table"}}, "needs the settings file, label, group"),
        ({**SMALL, "partition": {"alpha": -1.0}}, "'alpha' of partition must be above 0"),
        ({**SMALL, "partition": {"kind": "dirichlet"}}, "partition"),
        ({**SMALL, "partition": {"clients": 0}}, "'clients' of partition must be 1 or more"),
        ({**SMALL, "training": {"rounds": 0}}, "'rounds' of training must be 1 or more; got 0"),
        ({**SMALL, "training": {"participation": 1.5}}, "'participation' of training must be at most 1; got 1.5"),
        ({**SMALL, "training": {"lr": float("inf")}}, "'lr' of training must be 0 or more; got inf"),
        ({**SMALL, "training": {"clip": 0.0}}, "'clip' of training must be above 0; got 0.0"),
        ({**SMALL, "model": {"name": "resnet"}}, "did you mean 'resnet18'"),
        ({**SMALL, "engine": "lop"}, "did you mean 'loop'"),
        ({**SMALL, "seeds": []}, "at least one seed"),
        ({**SMALL, "seeds": [1, 1]}, "must differ"),
        ({**SMALL, "seeds": [-1]}, "0 or more"),
        ({**SMALL, "seeds": "three"}, "seeds"),
        ({**SMALL, "plugins": ["nowhere.py"]}, "no plugin file nowhere.py"),
        ({**SMALL, "plugins": 3}, "'plugins' must be a list of files; got 3"),
        ({**SMALL, "engine": ["loop"]}, "no engine"),
        ({**SMALL, "seeds": range(10_001)}, "seeds"),
        ({**SMALL, "model": {"name": 5e-324}}, "'model.name' must be a text"),
        ({**SMALL, "data": {"source": ["x"]}}, "'data.source' must be a text"),
        ({**SMALL, "data": {"rows": 10**400}}, "at most 19 digits"),
        ({**SMALL, "data": {"rows": 10**12}}, "'rows' of data source 'census' must be at most 100,000,000"),
        ({**SMALL, "workers": 10**6}, "'workers' of study must be at most 1,024"),
        ({**SMALL, "model": {"hidden": [8, 10**7]}}, "'hidden' of MLP must be at most 65,536"),
        ({**SMALL, "training": {"lr": 1e308}}, "'lr' of training must be at most 1e\\+38"),
        ({**SMALL, "training": {"lr_decay": 1e9, "lr_step": 1, "rounds": 50}}, "would grow beyond all numbers"),
        ({**SMALL, "privacy": {"noise": 0.0}}, "needs noise above 0"),
        ({"algorithms": {"ffalm": 3}}, "'algorithms.ffalm' of a configuration must be a section"),
        ({"algorithms": {"ffalm": {"preset": [-1]}}}, "'algorithms.ffalm.preset' must be a text"),
        ({"algorithms": {"a\nb": {"name": "fedavg"}}}, "the name of its run folders"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse(settings)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no configuration file"):
        read(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(UserError, match="not valid TOML"):
        read(broken)


def test_a_plugin_registers_an_algorithm(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import ffalm\n"
        "@ffalm.register\n"
        "@dataclass(frozen=True)\n"
        "class Halved(ffalm.Algorithm):\n"
        "    name: ClassVar[str] = 'halved-by-plugin'\n"
        "    title: ClassVar[str] = 'Halved'\n"
        "    factor: float = 0.5\n"
        "    def objective(self, batch, state):\n"
        "        return self.factor * super().objective(batch, state)\n"
    )
    config = parse({"plugins": [str(plugin)], "algorithms": {"halved-by-plugin": {"factor": 0.25}}})
    assert config.entries[0].label == "Halved"
    from ffalm.algorithms.registry import _REGISTERED

    del _REGISTERED["halved-by-plugin"]


def test_an_owner_column_makes_natural_silos_unless_another_partition_is_named() -> None:
    owned = {"source": "census", "owner": "occupation"}
    assert parse({**SMALL, "data": owned}).partition.kind == "silos"
    assert parse({**SMALL, "data": owned, "partition": {"kind": "iid", "clients": 3}}).partition.kind == "iid"
    assert parse({**SMALL, "data": {"source": "census"}}).partition.kind == "plain"
    for name, value in (("clients", 3), ("alpha", 0.3)):
        with pytest.raises(UserError, match=f"leave 'partition.{name}' out"):
            parse({**SMALL, "data": owned, "partition": {name: value}})
