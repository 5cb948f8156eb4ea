"""The federation folder: written whole, never written over, and found again."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="real federations need the extra 'flower'")

from ffalm.errors import UserError
from ffalm.federate.deploy.creation import LABEL, file_name, site_names, write_files
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder, create, host_and_port
from ffalm.federate.deploy.instructions import page
from ffalm.federate.federation_config import FederationConfig, LocalImages, LocalTable, SiteConfig

SITES = ("north", "south")


def _config(address: str = "10.0.0.5:18000", **data: object) -> FederationConfig:
    shared = {"label": "paid", "group": "sex", **data}
    return FederationConfig.parse({"name": "clinics", "address": address, "sites": list(SITES), "data": shared})


@pytest.fixture
def made(tmp_path: Path) -> FederationFolder:
    sites = [SiteConfig(name=name, data=LocalTable(file="data.csv")) for name in SITES]
    return create(tmp_path / "clinics", _config(), sites)


def test_everything_is_there_and_reads_back(made: FederationFolder) -> None:
    assert FederationFolder.find(made.path) == made
    assert FederationConfig.read(made.path / "federation.toml") == _config()
    assert made.sites == list(SITES)
    assert made.address == ("10.0.0.5", 18000)
    for name in SITES:
        site = SiteFolder.find(made.site(name))
        assert (site.name, site.address) == (name, made.address)
        assert SiteConfig.read(site.path / "site.toml").data == LocalTable(file="data.csv")
        assert (site.path / "ca.crt").read_bytes() == (made.coordinator / "ca.crt").read_bytes()
    keys = {made.site(name).joinpath("node.pub").read_text() for name in SITES}
    assert len(keys) == 2


def test_what_is_secret_is_its_owners_alone(made: FederationFolder) -> None:
    secrets = [made.coordinator / "ca.key", made.coordinator / "server.key", *made.path.glob("sites/*/node.key")]
    assert len(secrets) == 4
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}
    assert not list(made.path.glob("sites/*/ca.key")), "the authority's key stays with the coordinator"
    assert made.coordinator.stat().st_mode & 0o077 == 0


def test_the_app_names_this_packages_two_ends_and_this_folder(made: FederationFolder) -> None:
    app = tomllib.loads((made.app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "ffalm.federate.deploy.federation_apps:server",
        "clientapp": "ffalm.federate.deploy.federation_apps:client",
    }
    assert app["config"] == {"folder": str(made.path)}


def test_a_folder_that_was_moved_is_named_anew(made: FederationFolder, tmp_path: Path) -> None:
    moved = FederationFolder.find(made.path.rename(tmp_path / "else where"))
    moved.write_app()
    app = tomllib.loads((moved.app / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["config"]["folder"] == str(moved.path)


def test_nothing_is_written_over(made: FederationFolder) -> None:
    before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="never written over"):
        create(made.path, _config(), [])
    assert {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_filled_is_not_left_half_made(tmp_path: Path) -> None:
    def fail(sites: Path) -> None:
        raise UserError("The disk is full.")

    with pytest.raises(UserError, match="full"):
        create(tmp_path / "clinics", _config(), [SiteConfig(name="north", data=LocalTable(file="x.csv"))], fail)
    assert list(tmp_path.iterdir()) == []


def test_the_instructions_say_what_the_site_must_do_and_what_leaves_it(made: FederationFolder) -> None:
    page = (made.site("north") / "INSTRUCTIONS.md").read_text()
    for needed in (
        "10.0.0.5, TCP port 18000",
        "`paid`",
        "`sex`",
        "ffalm federate site .",
        "What leaves",
        "What does not",
    ):
        assert needed in page
    assert len(page.splitlines()) < 50, "one page"


def test_the_instructions_list_what_a_blind_rule_asks_for(made: FederationFolder) -> None:
    plan = FederationConfig.read(made.path / "federation.toml")
    site = SiteConfig.read(made.site(plan.sites[0]) / "site.toml")
    pages = [page(replace(plan, target="dpd <= 0.05", repair=repair), site) for repair in ("groups", "blind")]
    assert ["second model" in one for one in pages] == [False, True]


def test_the_instructions_for_images_name_the_folder_and_the_labels(tmp_path: Path) -> None:
    sites = [SiteConfig(name=name, data=LocalImages(folder="images", labels="labels.csv")) for name in SITES]
    config = _config(source="images", groups=["f", "m"])
    page = (create(tmp_path / "faces", config, sites).site("south") / "INSTRUCTIONS.md").read_text()
    assert 'folder = "images"' in page
    assert "(f, m)" in page


@pytest.mark.parametrize("kind", [FederationFolder, SiteFolder])
def test_a_folder_that_is_none_is_named(kind: type[FederationFolder | SiteFolder], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no"):
        kind.find(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no .*\.toml"):
        kind.find(tmp_path)


def test_a_damaged_file_is_named(made: FederationFolder) -> None:
    (made.path / "federation.toml").write_text("sites = [")
    with pytest.raises(UserError, match=r"federation\.toml is not valid TOML"):
        _ = made.sites


@pytest.mark.parametrize(
    ("text", "parts"),
    [("10.0.0.5:80", ("10.0.0.5", 80)), ("fair.example:18000", ("fair.example", 18000)), ("[::1]:9", ("::1", 9))],
)
def test_an_address_has_two_parts(text: str, parts: tuple[str, int]) -> None:
    assert host_and_port(text, Path("x")) == parts


@pytest.mark.parametrize(
    "text", ["", "fair.example", "fair.example:", "fair.example:http", "a:0", "a:65536", f"a:{'9' * 5000}"]
)
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        host_and_port(text, Path("x"))


def test_the_demonstration_gives_everybody_to_exactly_one_site(tmp_path: Path) -> None:
    import pandas as pd

    names = site_names(5)
    assert names == ["north", "south", "west", "east", "site-5"]
    for name in names:
        (tmp_path / name).mkdir()
    write_files(tmp_path, names, seed=1, rows=2000)
    parts = []
    for number, name in enumerate(names):
        file = tmp_path / name / file_name(number)
        parts.append(pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file))
    assert sum(map(len, parts)) == 2000
    assert {part.shape[1] for part in parts} == {14}
    shares = [(part[LABEL] == "yes").mean() for part in parts]
    assert max(shares) - min(shares) > 0.1, "the split is skewed"


def test_each_audit_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path)
    first, second = folder.new_audit(), folder.new_audit()
    assert (folder.run, first.run, second.run) == (tmp_path / "run", tmp_path / "audits/1", tmp_path / "audits/2")
    assert {path.stat().st_mode & 0o777 for path in (first.run.parent, first.run, second.run)} == {0o700}
    second.write_app()
    app = tomllib.loads((second.app / "pyproject.toml").read_text(encoding="utf-8"))
    settings = app["tool"]["flwr"]["app"]["config"]
    assert settings == {"folder": str(tmp_path), "audit": "audits/2"}
