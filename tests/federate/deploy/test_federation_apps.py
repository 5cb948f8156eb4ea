"""What Flower imports at either end."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")


def test_flower_finds_a_server_and_a_client_app_and_a_site_loads_no_pandas_for_them() -> None:
    code = (
        "import sys; from ffalm.federate.deploy.federation_apps import client, server;"
        "import ffalm.federate.site.answering;"
        "print(type(server).__name__, type(client).__name__, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ServerApp", "ClientApp", "False"]
