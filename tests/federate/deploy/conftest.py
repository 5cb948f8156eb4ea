"""A federation folder of two sites, in which nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="real federations need the extra 'flower'")

from ffalm.federate.deploy.folder import FederationFolder, create
from ffalm.federate.deploy.processes import free_port
from ffalm.federate.federation_config import FederationConfig, LocalTable, SiteConfig


@pytest.fixture
def clinics(tmp_path: Path) -> FederationFolder:
    names = ["north", "south"]
    shared = {"label": "paid", "group": "sex"}
    config = FederationConfig.parse(
        {"name": "clinics", "address": f"127.0.0.1:{free_port()}", "sites": names, "data": shared}
    )
    sites = [SiteConfig(name=name, data=LocalTable(file="data.csv")) for name in names]
    return create(tmp_path / "clinics", config, sites)
