"""Settings of privacy check themselves."""

from __future__ import annotations

from typing import Any

import pytest

from ffalm import Privacy
from ffalm.errors import UserError


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


def test_tallies_get_the_noise_of_the_model_unless_said() -> None:
    assert Privacy(3.0).of_tallies == 3.0
    assert Privacy(3.0, tally_noise=5.0).of_tallies == 5.0
