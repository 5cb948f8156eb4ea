"""Sites come and go, and keys are replaced: in the folder, and at a coordinator that is running."""

from __future__ import annotations

import datetime
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.errors import UserError
from ffalm.federate.deploy import certificates, operations
from ffalm.federate.deploy.certificates import server_key_matches
from ffalm.federate.deploy.control import Control
from ffalm.federate.deploy.folder import FederationFolder, SiteFolder
from ffalm.federate.deploy.membership import add_site, remove_site, rotate_own_key, rotate_server_key, rotate_site_key
from ffalm.federate.deploy.operations import CoordinatorProcess
from ffalm.federate.deploy.processes import FlowerProcess
from ffalm.federate.deploy.superlink_state import registered_nodes
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.keys import fingerprint, write_key_pair


def _config(folder: FederationFolder) -> FederationConfig:
    return FederationConfig.read(folder.path / "federation.toml")


def test_a_new_site_has_a_folder_a_key_and_the_others_keys(clinics: FederationFolder) -> None:
    change = add_site(clinics, "east")
    assert (change.registered, change.secure) == (False, False)
    assert _config(clinics).sites == ("north", "south", "east")
    site = SiteFolder.find(clinics.site("east"))
    assert SiteConfig.read(site.path / "site.toml").name == "east"
    assert {path.name for path in (site.path / "peers").iterdir()} == {"north.pub", "south.pub"}
    assert (clinics.site("north") / "peers" / "east.pub").read_bytes() == (site.path / "node.pub").read_bytes()
    assert (site.path / "node.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="has a site east already"):
        add_site(clinics, "east")
    with pytest.raises(UserError, match="letters, digits"):
        add_site(clinics, "../east")


def test_a_removed_site_keeps_its_number_and_comes_back_with_another_key(clinics: FederationFolder) -> None:
    add_site(clinics, "east")
    before = fingerprint(clinics.site("north") / "node.pub")
    assert remove_site(clinics, "north").short == 0
    assert _config(clinics).sites == ("north", "south", "east")
    assert _config(clinics).active == ("south", "east") == tuple(clinics.sites)
    assert remove_site(clinics, "south").short == 1
    with pytest.raises(UserError, match=r"'min_sites' asks for 2 sites, .* has 1 \(without north, south\)"):
        _config(clinics)
    with pytest.raises(UserError, match="only site left"):
        remove_site(clinics, "east")
    with pytest.raises(UserError, match="'west'"):
        remove_site(clinics, "west")
    add_site(clinics, "north")
    assert _config(clinics).active == ("north", "east")
    assert fingerprint(clinics.site("north") / "node.pub") != before


def test_a_key_that_the_site_made_replaces_ours_and_its_private_half_is_not_here(
    clinics: FederationFolder, tmp_path: Path
) -> None:
    write_key_pair(tmp_path, "north")
    rotate_site_key(clinics, "north", tmp_path / "node.pub")
    assert fingerprint(clinics.site("north") / "node.pub") == fingerprint(tmp_path / "node.pub")
    assert not (clinics.site("north") / "node.key").exists()
    assert (clinics.site("south") / "peers" / "north.pub").read_bytes() == (tmp_path / "node.pub").read_bytes()
    with pytest.raises(UserError, match="is the one that the site north has"):
        rotate_site_key(clinics, "south", tmp_path / "node.pub")


def test_a_running_coordinator_lets_the_new_key_in_and_shuts_the_old_one_out(
    clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = running(clinics, monkeypatch)
    coordinator.register_keys()
    before = coordinator.nodes()
    assert rotate_site_key(clinics, "north").registered
    assert let_in(clinics) == {"north", "south"} and coordinator.nodes()["south"] == before["south"]
    add_site(clinics, "east")
    remove_site(clinics, "south")
    assert let_in(clinics) == coordinator.nodes().keys() == {"north", "east"}
    assert not set(before.values()) & set(coordinator.nodes().values())
    with pytest.raises(UserError, match="stop it before"):
        rotate_server_key(clinics)


@pytest.mark.parametrize("killed", ["register", "unregister", "write"])
def test_a_key_is_shut_out_though_whoever_let_it_in_was_killed_before_noting_it(
    clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """A key of no known number could not be shut out, and one that was shut out already kept the coordinator down."""
    coordinator = running(clinics, monkeypatch)
    with monkeypatch.context() as dying:
        dying.setattr(operations, "write_atomic", death)
        with pytest.raises(Killed):
            coordinator.register_keys()
    if killed != "register":
        coordinator.register_keys()
    with monkeypatch.context() as dying:
        if killed == "unregister":
            dying.setattr(Control, "register", death)
        elif killed == "write":
            dying.setattr(operations, "write_atomic", death)
        else:
            dying.setattr(Control, "unregister", death)
        with pytest.raises(Killed):
            rotate_site_key(clinics, "north")
    coordinator.register_keys()
    rotate_site_key(clinics, "north")
    assert let_in(clinics) == coordinator.nodes().keys() == {"north", "south"}
    assert len(registered_nodes(clinics.coordinator / "state.db")) == 2


def test_removing_a_site_again_shuts_a_key_out_that_a_killed_command_left_in(
    clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = running(clinics, monkeypatch)
    coordinator.register_keys()
    with monkeypatch.context() as dying:
        dying.setattr(Control, "unregister", death)
        with pytest.raises(Killed):
            remove_site(clinics, "south")
    assert clinics.sites == ["north"] and let_in(clinics) == {"north", "south"}
    assert remove_site(clinics, "south").registered and let_in(clinics) == {"north"}


class Killed(BaseException):
    """The process ends here."""


def death(*_: object, **__: object) -> None:
    raise Killed


def running(clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch) -> CoordinatorProcess:
    """A coordinator that seems to run, with a real database of Flower's behind `flwr supernode`."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.superlink import config_loader
    from flwr.superlink.federation import NoOpFederationManager

    database = str(clinics.coordinator / "state.db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's migrations
        state = config_loader.get_objectstore_linkstate_factories(database, NoOpFederationManager())[1].state()

    def register(_: Control, key: Path) -> None:
        with suppress(ValueError):  # it is in use already
            state.create_node("me", "me", public_key_to_bytes(load_ssh_public_key(key.read_bytes())), 30.0)  # type: ignore[arg-type]

    monkeypatch.setattr(FlowerProcess, "pid", lambda self: 1 if self.log.stem == "superlink" else None)
    monkeypatch.setattr(Control, "register", register)
    monkeypatch.setattr(Control, "unregister", lambda self, node: state.delete_node("me", node))
    coordinator = CoordinatorProcess(clinics)
    coordinator.process.home.mkdir()
    coordinator.control.configure("127.0.0.1:1", clinics.coordinator / "ca.crt")
    (clinics.coordinator / "registered.json").write_text("{}")
    return coordinator


def let_in(clinics: FederationFolder) -> set[str]:
    """The sites whose keys, as they are in their folders, the database lets in."""
    keys = registered_nodes(clinics.coordinator / "state.db")
    return {name for name in clinics.all_sites if fingerprint(clinics.site(name) / "node.pub") in keys}


def test_a_site_makes_a_new_pair_in_its_own_folder(clinics: FederationFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    site = SiteFolder.find(clinics.site("north"))
    before = fingerprint(site.path / "node.pub")
    assert fingerprint(rotate_own_key(site)) != before
    monkeypatch.setattr(FlowerProcess, "pid", lambda self: 1)
    with pytest.raises(UserError, match="stop it before"):
        rotate_own_key(site)


def test_the_coordinators_key_is_replaced_and_with_a_new_authority_the_old_certificate_is_refused(
    clinics: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = clinics.coordinator
    before, authority = (own / "server.key").read_bytes(), (own / "ca.crt").read_bytes()
    rotate_server_key(clinics)
    assert server_key_matches(own) and (own / "server.key").read_bytes() != before
    assert (own / "ca.crt").read_bytes() == authority
    old = tmp_path / "old"
    old.mkdir()
    for name in ("server.key", "server.pem"):
        shutil.copy(own / name, old)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_AUTHORITY_LIFE", datetime.timedelta(minutes=-1))
        certificates.write_authority(own, "clinics")  # one that has expired
    rotate_server_key(clinics, authority=True)
    assert server_key_matches(own)
    assert (clinics.site("north") / "ca.crt").read_bytes() == (own / "ca.crt").read_bytes() != authority
    for name in ("server.key", "server.pem"):
        shutil.copy(old / name, own)
    assert not server_key_matches(own)
