"""A site that lacks another's public key cannot take part with it: it is told which file, and nobody else is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federate.makers import NAMES, config, exchange_keys, world

from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate

MISSING = "The site 'north' has no key of 'south': south must send it its node.pub, to be kept as peers/south.pub."


def led(root: Path, sites: int, lack: tuple[str, ...], away: tuple[str, ...] = ()) -> list[dict[str, dict[str, str]]]:
    """The rounds of a federation in which some sites lack the key of south."""
    there = world(root, (50, 40, 45, 40)[:sites])
    exchange_keys(there.folders)
    for name in lack:
        (there.folders[name] / "peers" / "south.pub").unlink()
    there.away = set(away)
    plan = config(NAMES[:sites], rules={"secure": True}, training={"rounds": 2})
    return coordinate(plan, root / "run", there, pause=0.001).history


@pytest.mark.parametrize("sites", [3, 4])
def test_the_others_go_on_without_the_site_that_lacks_a_key(tmp_path: Path, sites: int) -> None:
    for record in led(tmp_path, sites, ("north",)):
        assert record["missed"] == {"north": f"failed: {MISSING}"} and not record["quarantined"]


@pytest.mark.parametrize(("sites", "away"), [(2, ()), (3, ("west",))])
def test_of_two_sites_the_one_whose_key_the_other_lacks_is_not_blamed(
    tmp_path: Path, sites: int, away: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as ended:
        led(tmp_path, sites, ("north",), away)
    assert f"north: failed: {MISSING}" in str(ended.value)
    assert "south: " not in str(ended.value).replace(MISSING, "")


def test_where_most_lack_a_key_they_go_on_without_its_site_and_name_the_file(tmp_path: Path) -> None:
    for record in led(tmp_path, 4, ("north", "west")):
        assert record["quarantined"].keys() == {"south"} and not record["missed"]
        assert "to be kept as peers/south.pub" in record["quarantined"]["south"]
