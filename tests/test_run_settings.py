"""Settings check themselves and need no torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ffalm import Privacy
from ffalm.cli.flags import study_flags
from ffalm.engines import ENGINES
from ffalm.errors import UserError
from ffalm.models import ARCHITECTURES
from ffalm.run_settings import Training


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise", -1.0),
        ("noise", float("nan")),
        ("tally_noise", float("inf")),
        ("clip", 0.0),
        ("state_clip", -1.0),
        ("loss_bound", float("inf")),
        ("delta", 0.0),
        ("delta", 1.0),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(name: str, value: float) -> None:
    settings: dict[str, Any] = {"noise": 1.0, name: value}
    with pytest.raises(UserError, match=f"'{name}'"):
        Privacy(**settings)


def test_epochs_beside_steps_are_refused() -> None:
    with pytest.raises(UserError, match="'local_epochs' and 'local_steps' exclude each other"):
        Training(local_epochs=2, local_steps=3)


def test_tallies_get_the_noise_of_the_model_unless_said() -> None:
    assert Privacy(3.0).of_tallies == 3.0
    assert Privacy(3.0, tally_noise=5.0).of_tallies == 5.0


def test_flags_are_made_without_torch() -> None:
    made = "from ffalm.cli.flags import prepare; import ffalm.cli; prepare(['run', 'compare', 'reproduce'])"
    code = f"import sys; {made}; print(sorted({{'torch', 'pandas', 'jinja2'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_help_names_every_model_and_engine() -> None:
    told = {flag.name: flag.help for flag in study_flags()}
    assert all(name in told["model"] for name in ARCHITECTURES)
    assert all(name in told["engine"] for name in ENGINES)
