from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.theory.pages import table_lines

from ffalm.report.tables import Row
from ffalm.theory import example, trajectories
from ffalm.theory import paper_example as page
from ffalm.theory.trajectories import Setting, run

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "theory.md"

#: Limits after a million rounds, by number of local steps.
LEFT = {1: -0.633756921, 2: -0.633791029, 3: -0.633824494, 4: -0.633857804, 5: -0.633891054, 6: -0.633924272}
CAPPED = {1: 0.650928034, 2: 0.650955881, 3: 0.650983295, 5: 0.651037873, 10: 0.651174030}


def verdicts(rows: list[Row]) -> dict[str, str]:
    """The verdict of every claim."""
    return {str(row.cells[0].value): str(row.cells[3].value) for row in rows}


def test_every_printed_value_of_the_landscape_agrees() -> None:
    assert set(verdicts(page.landscape_rows()).values()) == {"ok", "added"}


def test_the_pl_constant_is_false_and_gamma_wrong_and_the_rest_valid() -> None:
    found = verdicts(page.constant_rows())
    assert found.pop("mu, PL constant of each F_i") == "false"
    assert found.pop("Gamma") == "wrong"
    assert set(found.values()) == {"valid, loose"}


def test_agreement_is_to_the_last_printed_digit() -> None:
    assert page.agrees("0.657645", 0.6576446)
    assert not page.agrees("0.657645", 0.6576456)
    assert page.agrees("0", 2e-16)


def test_a_model_far_from_both_saddles_ended_at_none() -> None:
    assert page.ending(-0.6338911) == "worse saddle"
    assert page.ending(0.651174) == "better saddle"
    assert page.ending(-0.51) == "no saddle"


def test_a_setting_is_told_in_words() -> None:
    assert page.describe(page.PUBLISHED) == "from 2, E = 5, steps 16/(t+1), every local step clamped to the box"
    assert page.describe(page.LAWFUL) == "from 2, E = 5, steps 16/t, at most 1/342"
    assert page.describe(page.CLIPPED).endswith("slopes clipped to 1")


def test_the_lasting_part_of_the_bound_dwarfs_the_gap_that_it_explains() -> None:
    assert [row.cells[2].value for row in page.bound_rows()] == ["116.9", "0.0363"]


def test_the_page_in_the_documents_has_the_rows_that_take_no_time() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for row in [*page.landscape_rows(), *page.constant_rows(), *page.bound_rows(), *page.share_rows()]:
        assert f"| {' | '.join(str(cell.value) for cell in row.cells)} |" in text


def test_the_example_writes_its_table_and_its_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROUNDS", 3000)
    monkeypatch.setattr(page, "run_all", lambda settings: {each: run(each, 3000) for each in settings})
    monkeypatch.setattr(page, "duals", lambda: trajectories.duals(3000))
    found = example(tmp_path / "new")
    assert set(found.files) == {"md", "tex", "csv", "svg"}
    drawn = ElementTree.parse(found.files["svg"]).getroot()
    assert len([text for text in drawn.iter() if text.get("class") == "name"]) == 3  # panels
    assert all(len(one.cells) == len(found.tables[0].columns) == 4 for one in found.tables[0].rows)
    assert "-13.3915110" in found.files["csv"].read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_run_of_a_million_rounds_ends_at_its_known_limit(tmp_path: Path) -> None:
    found = example(tmp_path)
    computed = {one["claim"].removeprefix("w: "): one["computed"] for one in found.values}
    for steps, limit in LEFT.items():
        if page.LEFT[steps] != page.PUBLISHED:
            assert float(computed[page.describe(page.LEFT[steps])]) == limit
    for steps, limit in CAPPED.items():
        assert float(computed[page.describe(page.CAPPED[steps])]) == limit
    for setting in (Setting(5), Setting(5, clamp="server"), Setting(5, shift=1, clamp="server")):
        assert float(computed[page.describe(setting)]) == 0.651037873
    for clamp in ("server", "none"):
        assert float(computed[page.describe(Setting(1, clamp=clamp))]) == CAPPED[1]
    assert float(computed[page.describe(Setting(2))]) == CAPPED[2]
    assert computed[page.describe(page.CLIPPED)].startswith("-0.510")
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(line in text for line in [*table_lines(found.tables[0]), *found.notes])
