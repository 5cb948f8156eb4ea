"""The names that other people's code relies on."""

from __future__ import annotations

import pytest

import ffalm


@pytest.mark.parametrize("name", ffalm.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(ffalm, name) is not None
    assert name in dir(ffalm)


def test_dir_lists_the_public_names_alone() -> None:
    assert set(dir(ffalm)) == {*ffalm.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="fedsgd"):
        ffalm.fedsgd  # type: ignore[attr-defined]  # noqa: B018


def test_the_four_algorithms_are_registered_by_name() -> None:
    assert set(ffalm.algorithms()) >= {"fedavg", "fairfed", "fpfl", "ffalm"}
    assert ffalm.algorithms()["ffalm"] is ffalm.FFALM


def test_the_signatures_of_the_design_hold() -> None:
    assert ffalm.FairFed() == ffalm.FairFed(step=0.5, metric="dpd")
    assert ffalm.FPFL() == ffalm.FPFL(penalty=5.0, dual_lr=0.5, constraint="abs", tolerance=0.0)
    assert ffalm.FFALM() == ffalm.FFALM(
        penalty=2.0,
        dual_lr=2.0,
        dual_lr_growth=1.05,
        penalty_growth=1.0,
        dual_bound=None,
        dual_data="full",
        dual_init=0.0,
    )
    assert ffalm.metrics.tally([1, 0, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1]).dpd() == 0.0
