from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.data.census import Census
from ffalm.data.table import Table
from ffalm.errors import UserError


def test_a_column_of_text_can_name_the_owners_and_is_no_feature_then() -> None:
    plain, owned = Census(rows=600).read(), Census(rows=600, owner="workclass").read()
    assert "workclass" not in owned.features and len(owned.features.columns) == len(plain.features.columns) - 1
    values = plain.features["workclass"].to_numpy()
    assert owned.owner is not None
    assert [owned.owner_names[code] for code in owned.owner[plain.parts[0]]] == values[plain.parts[0]].tolist()
    known = [owned.owner_names[code] if code >= 0 else None for code in owned.owner[plain.parts[2]]]
    assert all(name in (None, value) for name, value in zip(known, values[plain.parts[2]], strict=True))


def test_an_owner_whose_rows_are_all_held_out_is_noted(tmp_path: Path) -> None:
    rows = [f"{n % 7},{'fm'[n % 2]},{'ab'[n % 2]},{n % 3 % 2},{'test' if n % 4 == 0 else 'train'}" for n in range(80)]
    file = tmp_path / "loans.csv"
    file.write_text("\n".join(["age,sex,bank,paid,part", *rows, "3,f,c,1,test"]) + "\n")
    found = Table(str(file), "paid", "sex", owner="bank", split="part").read()
    assert found.owner_names == ("a", "b")
    assert "Owners without training rows are not clients: 'c'. Their 1 held-out and test rows are scored" in " ".join(
        found.notes
    )


@pytest.mark.parametrize("column", ["age", "nothing"])
def test_a_column_that_cannot_name_owners_is_refused(column: str) -> None:
    with pytest.raises(UserError, match=column):
        Census(rows=600, owner=column).read()
