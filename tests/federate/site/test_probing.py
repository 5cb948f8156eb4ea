"""A coordinator that asks sites other questions than ours does, to learn what they do not tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.federate.makers import config, people, site_folder, world

from ffalm.data.encoding import CategoryColumn, TableEncoding
from ffalm.data.types import Task
from ffalm.engines.remote.message import Fact, Message
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.deploy.creation import new_site
from ffalm.federate.site.answering import answer
from ffalm.federate.terms import SiteTerms
from ffalm.settings import to_plain


def greeted(folder: Path, min_group: int) -> Message:
    data = json.dumps(to_plain(config().data))
    facts: dict[str, Fact] = {"describe": True, "min_group": min_group, "data": data, "columns": json.dumps(["job"])}
    return answer("hello", Message(facts=facts), {"site": str(folder)})


def test_how_many_rows_hold_a_value_does_not_follow_from_asking_with_ever_larger_floors(tmp_path: Path) -> None:
    """A category is named where `min_group` rows hold it: trying every number would count them."""
    folder = site_folder(tmp_path, "north", people(200, 1))
    named = [
        "smith" in str(found.facts["description"])
        for floor in range(20, 60)
        if "description" in (found := greeted(folder, floor)).facts
    ]
    assert len(named) == 3 and all(named)
    refused = greeted(folder, 44)
    assert "would reveal how many rows hold a value" in str(refused.facts["misfit"])
    assert "description" in greeted(folder, 20).facts


def test_a_sites_log_names_what_a_coordinator_had_described(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    greeted(site_folder(tmp_path, "north", people(200, 1)), 20)
    (said,) = caplog.messages
    assert said.startswith("This site describes its rows: label loan, group sex, values of at least 20 rows")


def test_a_floor_that_is_no_number_of_rows_is_refused_and_not_noted(tmp_path: Path) -> None:
    folder = site_folder(tmp_path, "north", people(200, 1))
    for floor in (10**309, -1):
        assert "no number of rows" in str(greeted(folder, floor).facts["misfit"])
    assert "description" in greeted(folder, 20).facts


def test_a_column_that_a_site_drops_is_no_label_and_no_group_of_any_question(tmp_path: Path) -> None:
    frame = people(80, 1).assign(hiv=lambda rows: rows["age"] > 50)
    folder = site_folder(tmp_path, "north", frame, drop=["hiv"])
    for roles in ({"group": "hiv"}, {"group": ["sex", "hiv"]}, {"label": "hiv", "favourable": "True"}):
        plan = config(("north", "south"), data=roles)
        asked: dict[str, Fact] = {"describe": True, "data": json.dumps(to_plain(plan.data))}
        greeting = answer("hello", Message(facts=asked), {"site": str(folder)})
        task = Task("loans", plan.data.label, "hiv", ("no", "yes"), ("False", "True"), 1)
        agreed = Agreement(task, plan.data, TableEncoding((CategoryColumn("job", ("smith",)),)), plan.model, plan.sites)
        terms = Message(facts={"terms": agreed.terms("north", plan, "run").to_text()})
        for found in (greeting, answer("agree", terms, {"site": str(folder)})):
            assert "lists the column 'hiv' in drop" in str(found.facts["misfit"]) and not found.tensors


def test_a_column_of_names_is_refused_in_an_encoding_that_nobody_described(tmp_path: Path) -> None:
    """With the one feature "name is Ann" the Tally of a model that predicts it would tell Ann's label and group."""
    frame = people(80, 1).assign(name=[f"person {number}" for number in range(80)])
    folder = site_folder(tmp_path, "north", frame)
    plan = config(("north", "south"))
    task = Task("loans", "loan", "sex", ("no", "yes"), ("female", "male"), 1)
    for column, told in ((CategoryColumn("job", ("smith",)), True), (CategoryColumn("name", ("person 7",)), False)):
        agreed = Agreement(task, plan.data, TableEncoding((column,)), plan.model, plan.sites)
        terms = Message(facts={"terms": agreed.terms("north", plan, "run").to_text()})
        found = answer("agree", terms, {"site": str(folder)})
        assert ("counts" in found.tensors) is told
        assert ("different text" in str(found.facts.get("misfit"))) is not told


def test_a_site_of_init_insists_on_the_rules_that_it_was_made_under(tmp_path: Path) -> None:
    plan = config(rules={"secure": True, "min_group": 12})
    site = new_site(plan, "north", "rows.csv")
    assert site.secure and site.min_group == 12
    sites = world(tmp_path, (90, 70))
    for name, folder in sites.folders.items():
        replace(site, name=name, secure=False).write(folder / "site.toml")
    coordinate(config(("north", "south"), rules={"min_group": 0}, training={"rounds": 1}), tmp_path / "run", sites)
    for told in json.loads((tmp_path / "run" / "sites.json").read_text())["sites"]:
        assert all(count == 0 or count >= 12 for row in told["rows"]["validation"] for count in row)


def test_terms_lead_to_no_file_of_the_sites_machine(tmp_path: Path) -> None:
    """A file of weights that the coordinator names would be opened, and its entries told where they do not fit."""
    folder = site_folder(tmp_path, "north", people(80, 1))
    save_file({"secret entry": torch.zeros(3)}, tmp_path / "weights.safetensors")
    plan = config(("north", "south"), model={"name": "linear", "weights": str(tmp_path / "weights.safetensors")})
    task = Task("loans", "loan", "sex", ("no", "yes"), ("female", "male"), 1)
    column = TableEncoding((CategoryColumn("job", ("smith",)),))
    terms = Agreement(task, plan.data, column, plan.model, plan.sites).terms("north", plan, "run")
    assert "weights.safetensors" in terms.to_text()
    found = SiteTerms.from_text(terms.to_text())
    assert found.model == config(model={"name": "linear"}).model
    assert "counts" in answer("agree", Message(facts={"terms": terms.to_text()}), {"site": str(folder)}).tensors
    assert "weights.safetensors" not in (folder / "agreed.json").read_text()
