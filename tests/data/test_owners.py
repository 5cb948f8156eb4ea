from __future__ import annotations

import pytest

from ffalm.data.census import Census
from ffalm.errors import UserError


def test_a_column_of_text_can_name_the_owners_and_is_no_feature_then() -> None:
    plain, owned = Census(rows=600).read(), Census(rows=600, owner="workclass").read()
    assert "workclass" not in owned.features and len(owned.features.columns) == len(plain.features.columns) - 1
    values = plain.features["workclass"].to_numpy()
    assert owned.owner is not None
    assert [owned.owner_names[code] for code in owned.owner[plain.parts[0]]] == values[plain.parts[0]].tolist()
    known = [owned.owner_names[code] if code >= 0 else None for code in owned.owner[plain.parts[2]]]
    assert all(name in (None, value) for name, value in zip(known, values[plain.parts[2]], strict=True))


@pytest.mark.parametrize("column", ["age", "nothing"])
def test_a_column_that_cannot_name_owners_is_refused(column: str) -> None:
    with pytest.raises(UserError, match=column):
        Census(rows=600, owner=column).read()
