"""What the tests of privacy share."""

from __future__ import annotations

import pytest
import torch

from ffalm import Federation


@pytest.fixture
def federation() -> Federation:
    """Four small clients of unequal size, with validation and test parts."""
    draws = torch.Generator().manual_seed(0)

    def part(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.randn(rows, 3, generator=draws)
        group = torch.arange(rows) % 2
        y = ((x[:, 0] + 0.5 * group + 0.3 * torch.randn(rows, generator=draws)) > 0).long()
        return x, y, group

    return Federation.from_arrays([part(rows) for rows in (40, 24, 32, 16)], validation=part(40), test=part(40))
