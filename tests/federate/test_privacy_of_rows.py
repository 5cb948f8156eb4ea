"""No value of a row, no file name and no path ever leaves a site, whatever is wrong with its data.

Each test plants a marker where something does not fit, lets a whole federation meet that site, and then searches every
byte that the site put on the wire, the coordinator's log and its folder for it.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tests.federate.makers import World, after, config, people, site_folder, world

from ffalm.engines.remote.message import Fact, Failure, Kind, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.site.answering import answer

MARKER = "HIV positive; ask Dr. Meyer"
TRAINING_ROW = 4  # of people(90, 5), under the default split
_PIECES = ("HIV", "positive", "Meyer")

Change = Callable[[pd.DataFrame], pd.DataFrame]


def one_cell(column: str, value: object = MARKER, row: int = 3) -> Change:
    """Put a value into one cell."""

    def changed(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object})
        frame.loc[row, column] = value
        return frame

    return changed


def column_of(name: str, values: Callable[[int], object]) -> Change:
    """Make a column anew."""
    return lambda frame: frame.assign(**{name: [values(row) for row in range(len(frame))]})


def both(*changes: Change) -> Change:
    def changed(frame: pd.DataFrame) -> pd.DataFrame:
        for change in changes:
            frame = change(frame)
        return frame

    return changed


MISFITS: dict[str, Change] = {
    "text in a numeric column": one_cell("age"),
    "text in a numeric column that has many values": both(
        column_of("age", lambda row: 20 + row % 45 / 7), one_cell("age", f"{MARKER} 17")
    ),
    "an unknown category": one_cell("job", row=TRAINING_ROW),
    "a very long category": one_cell("job", f"{MARKER} " * 2000, TRAINING_ROW),
    "an unknown label": one_cell("loan"),
    "an unknown group": one_cell("sex"),
    "a missing label beside an unknown one": both(one_cell("loan"), one_cell("loan", None, 9)),
    "a missing number in a row with a marker": both(one_cell("age", None), one_cell("job")),
    "an infinite number": both(one_cell("hours", np.inf), one_cell("job")),
    "dates": column_of("age", lambda row: f"19{10 + row % 80}-0{1 + row % 9}-1{row % 9} 10:00 {MARKER}"),
    "decimal commas": both(column_of("hours", lambda row: f"{row},5"), one_cell("job")),
    "names": column_of("job", lambda row: f"{MARKER} {row}"),
    "names of which one is repeated": column_of("job", lambda row: f"{MARKER} {max(row, 1)}"),
    "names that come in pairs": column_of("job", lambda row: f"{MARKER} {row // 2}"),
    "labels that are names": column_of("loan", lambda row: f"{MARKER} {row}"),
    "groups that are names": column_of("sex", lambda row: f"{MARKER} {row}"),
    "a column that no other site has": column_of("note", lambda row: MARKER if row % 2 else "none"),
    "a column of the same name twice": lambda frame: frame.rename(columns={"age": "hours"}),
    "no label column, and a header that is a row": lambda frame: frame.rename(columns={"loan": MARKER}),
}


class Wire(World):
    """A federation in one process that keeps every byte that its sites send."""

    sent: bytes = b""

    def ask(self, kind: Kind, messages: Any, deadline: float) -> dict[int, Message | Failure]:
        found = super().ask(kind, messages, deadline)
        for given in found.values():
            self.sent += on_the_wire(given)
        return found


def on_the_wire(given: Message | Failure) -> bytes:
    """The bytes of an answer as Flower sends it, or as plain text where Flower is not installed."""
    plain = repr(given).encode()
    if pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'"):
        from flwr.common.serde import recorddict_to_proto

        from ffalm.engines.flower.wire import packed, packed_failure

        record = packed(given) if isinstance(given, Message) else packed_failure(given.reason, given.trace)
        plain += recorddict_to_proto(record).SerializeToString()
    return plain


def lead(plan: FederationConfig, root: Path, sites: Wire, caplog: pytest.LogCaptureFixture) -> bytes:
    """Everything that the coordinator learns of a federation: the wire, its log, its folder."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    said = ""
    try:
        coordinate(plan, root / "run", sites, pause=0.001)
    except UserError as error:
        said = str(error)
    told = [record.getMessage() for record in caplog.records if "coordinator" in record.pathname]
    files = [path.read_bytes() for path in sorted((root / "run").rglob("*")) if path.is_file()]
    agreed = [folder / "agreed.json" for folder in sites.folders.values()]
    files += [path.read_bytes() for path in agreed if path.exists()]
    return b"\0".join([sites.sent, said.encode(), *(line.encode() for line in told), *files])


def assert_absent(learnt: bytes, *pieces: str) -> None:
    for piece in pieces:
        assert piece.encode() not in learnt, f"{piece!r} left the site"
        assert json.dumps(piece).strip('"').encode() not in learnt


@pytest.mark.parametrize("min_group", [0, 10])
@pytest.mark.parametrize("kind", MISFITS)
def test_a_misfit_never_sends_the_cell(
    tmp_path: Path, kind: str, min_group: int, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "names that come in pairs" and min_group == 0:
        pytest.skip("two rows with one value are enough under min_group 0")
    if kind == "a column that no other site has":
        _check_private_column(tmp_path, min_group, caplog)
        return
    sites = {
        name: site_folder(tmp_path / "sites", name, people(90, seed)) for seed, name in enumerate(("north", "south"))
    }
    bad = MISFITS[kind](people(90, 5))
    sites["west"] = site_folder(tmp_path / "sites", "west", bad)
    plan = config(rules={"min_group": min_group}, training={"rounds": 2})
    assert_absent(lead(plan, tmp_path, Wire(sites), caplog), *_PIECES)


def _check_private_column(root: Path, min_group: int, caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator is told the column's name and kind, the other sites nothing, and nobody a value."""
    sites = {name: site_folder(root / "sites", name, people(90, seed)) for seed, name in enumerate(("north", "south"))}
    sites["west"] = site_folder(root / "sites", "west", MISFITS["a column that no other site has"](people(90, 5)))
    wire = Wire(sites)
    assert_absent(lead(config(rules={"min_group": min_group}, training={"rounds": 2}), root, wire, caplog), *_PIECES)
    assert b'"note"' not in (sites["north"] / "agreed.json").read_bytes()
    listed = config(rules={"min_group": min_group}, data={"columns": ["age", "job"]}, training={"rounds": 1})
    again = Wire(sites)
    lead(listed, root / "again", again, caplog)
    assert b"note" not in again.sent and b"hours" not in again.sent and b"age" in again.sent


def _unreadable(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"age,hours,job,sex,loan\n\xff\xfe\x00" + MARKER.encode())


def _broken(folder: Path, name: str) -> None:
    (folder / name).write_text(f'age,hours\n1,2,3,{MARKER}\n"{MARKER}\n')


def _empty(folder: Path, name: str) -> None:
    (folder / name).write_text("")


def _folder(folder: Path, name: str) -> None:
    (folder / name).mkdir()


FILES: dict[str, tuple[str, Callable[[Path, str], None] | None]] = {
    "missing": (f"{MARKER}.csv", None),
    "not UTF-8": (f"{MARKER}.csv", _unreadable),
    "ragged": (f"{MARKER}.csv", _broken),
    "empty": (f"{MARKER}.csv", _empty),
    "a folder": (f"{MARKER}.csv", _folder),
    "of an unknown kind": (f"{MARKER}.xlsx", _empty),
    "a broken Parquet file": (f"{MARKER}.parquet", _broken),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_cannot_be_read_never_sends_its_name_or_content(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, write = FILES[kind]
    sites = {
        site: site_folder(tmp_path / "sites", site, people(90, seed)) for seed, site in enumerate(("north", "south"))
    }
    secret = tmp_path / "sites" / "ward Meyer"
    secret.mkdir()
    if write is not None:
        write(secret, name)
    sites["west"] = site_folder(tmp_path / "sites", "west", None, file=str(secret / name))
    learnt = lead(config(training={"rounds": 1}), tmp_path, Wire(sites), caplog)
    assert_absent(learnt, *_PIECES, str(secret))
    assert b"The site 'west' cannot take part: Its data file" in learnt


@pytest.mark.parametrize("fault", ["missing", "outside", "twice", "unreadable", "no name"])
def test_images_with_telling_names_are_never_named(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = config(
        data={"source": "images", "size": 8, "label": "loan", "group": "sex", "favourable": "yes"},
        model={"name": "cnn"},
        training={"rounds": 1},
    )
    sites = {name: _image_site(tmp_path / "sites", name, "") for name in ("north", "south")}
    sites["west"] = _image_site(tmp_path / "sites", "west", fault)
    learnt = lead(plan, tmp_path, Wire(sites), caplog)
    assert_absent(learnt, *_PIECES)
    assert b"The site 'west' cannot take part: " in learnt


def _image_site(root: Path, name: str, fault: str) -> Path:
    folder = root / name
    (folder / "Meyer").mkdir(parents=True)
    draw = np.random.default_rng(len(name))
    rows: list[dict[str, Any]] = []
    for number in range(40):
        file = f"{MARKER} {number}.png"
        pixels = Image.fromarray(draw.integers(0, 255, (8, 8, 3), dtype=np.uint8))
        content = io.BytesIO()
        pixels.save(content, "png")
        (folder / "Meyer" / file).write_bytes(content.getvalue())
        rows.append({"file": file, "loan": ("no", "yes")[number % 2], "sex": ("female", "male")[number // 2 % 2]})
    wrong = {"missing": f"{MARKER}.png", "outside": f"../{MARKER}.png", "twice": rows[0]["file"], "no name": ""}
    if fault in wrong:
        rows[5]["file"] = wrong[fault]
    if fault == "unreadable":
        (folder / "Meyer" / rows[5]["file"]).write_bytes(MARKER.encode())
    pd.DataFrame(rows).to_csv(folder / "Meyer.csv", index=False)
    data = {"source": "images", "folder": "Meyer", "labels": "Meyer.csv"}
    SiteConfig.parse({"name": name, "device": "cpu", "data": data}).write(folder / "site.toml")
    return folder


def test_a_mistake_in_site_toml_or_a_bug_is_told_without_a_word_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = site_folder(tmp_path, "north", people(60, 1))
    (folder / "site.toml").write_text(f'name = "north"\n[data]\nfile = "{MARKER}.csv"\nseparater = "{MARKER}"\n')
    with pytest.raises(UserError) as error:
        answer("hello", Message(facts={"describe": True}), {"site": str(folder)})
    assert_absent(str(error.value).encode(), *_PIECES, "separater", str(tmp_path))
    assert MARKER in caplog.text or "separater" in caplog.text

    pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")
    from flwr.app import Message as FlowerMessage
    from flwr.common.serde import recorddict_to_proto

    from ffalm.engines.flower import apps
    from ffalm.engines.flower.wire import packed

    def bug(*asked: Any) -> Message:
        raise KeyError(MARKER)

    class Asked:
        content = packed(Message())

    message: FlowerMessage = Asked()  # type: ignore[assignment]
    given = recorddict_to_proto(apps._answered(bug, "train", message, {}, traces=False)).SerializeToString()
    assert_absent(given, *_PIECES)
    assert b"KeyError" in given


def test_a_category_is_named_only_if_enough_rows_of_a_site_hold_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = people(200, 1)
    frame.loc[:8, "job"] = "rare trade"
    frame.loc[20:60, "job"] = "common trade"
    sites = {"north": site_folder(tmp_path / "sites", "north", frame)}
    sites["south"] = site_folder(tmp_path / "sites", "south", people(90, 2))
    plan = config(("north", "south"), rules={"min_group": 10}, training={"rounds": 1})
    learnt = lead(plan, tmp_path, Wire(sites), caplog)
    assert b"rare trade" not in learnt
    assert b"common trade" in (tmp_path / "run" / "encoding.json").read_bytes()


def description(root: Path, frame: pd.DataFrame, min_group: int = 10) -> dict[str, Any]:
    """What a site tells of the columns of its table."""
    folder = site_folder(root, "north", frame)
    asked: dict[str, Fact] = {"describe": True, "min_group": min_group, "columns": json.dumps([*frame.columns])}
    asked["data"] = json.dumps({"label": "loan", "group": "sex", "favourable": "yes"})
    given = answer("hello", Message(facts=asked), {"site": str(folder)})
    told: dict[str, Any] = json.loads(json.loads(str(given.facts["description"]))["columns"])
    return told


@pytest.mark.parametrize("few", [1, 9])
def test_the_sums_of_a_column_tell_no_value_that_few_rows_hold(tmp_path: Path, few: int) -> None:
    frame = people(400, 1).assign(damages=0)
    frame.loc[TRAINING_ROW : TRAINING_ROW + few - 1, "damages"] = 61_234
    told = description(tmp_path, frame)["damages"]
    assert told["total"] == told["squares"] == told["roots"] == 0.0 and told["count"] == 280


def test_the_sums_of_a_column_that_enough_rows_fill_are_exact(tmp_path: Path) -> None:
    frame = people(400, 1).assign(damages=0)
    frame.loc[:99, "damages"] = 5
    told = description(tmp_path, frame)["damages"]
    assert told["total"] > 0 and told["squares"] == 5 * told["total"]


def test_the_sums_of_a_column_do_not_tell_how_many_rows_hold_a_rare_number(tmp_path: Path) -> None:
    """Who knows that there are 0 to 4 convictions finds the rows with each by solving four equations."""
    frame = people(600, 1)
    frame = frame.assign(convictions=np.random.default_rng(1).choice([0, 1, 2], 600, p=[0.7, 0.2, 0.1]))
    frame.loc[TRAINING_ROW : TRAINING_ROW + 6, "convictions"] = 3
    told = description(tmp_path, frame)["convictions"]
    values = np.array([1.0, 2.0, 3.0, 4.0])
    sums = [told[name] for name in ("total", "squares", "roots", "root_squares")]
    rows = np.linalg.solve(np.stack([values, values**2, values**0.25, values**0.5]), sums)
    assert rows[2:] == pytest.approx([0.0, 0.0], abs=1e-6) and rows[:2].min() >= 10


def test_categories_are_told_in_an_order_that_tells_of_no_row(tmp_path: Path) -> None:
    frame = people(400, 1)
    orders = [description(tmp_path / str(job), frame.sort_values("job", ascending=job))["job"] for job in (True, False)]
    assert orders[0] == orders[1] == {"counts": [["clerk", 10], ["nurse", 10], ["smith", 10]]}


def test_of_a_group_in_numbers_the_values_are_told_and_no_sums(tmp_path: Path) -> None:
    """The sum of such a column is the number of men, from which a withheld cell could follow."""
    frame = people(400, 1)
    told = description(tmp_path, frame.assign(sex=(frame["sex"] == "male").astype(int)))["sex"]
    assert told == {"counts": [["0", 10], ["1", 10]]}


def test_a_sites_own_min_group_counts_where_it_is_stricter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = people(200, 1)
    frame.loc[:30, "job"] = "rare trade"
    north = site_folder(tmp_path / "sites", "north", frame)
    toml = (north / "site.toml").read_text()
    (north / "site.toml").write_text(toml.replace("min_group = 0", "min_group = 40"))
    sites = {"north": north, "south": site_folder(tmp_path / "sites", "south", people(90, 2))}
    plan = config(("north", "south"), rules={"min_group": 0}, training={"rounds": 1})
    learnt = lead(plan, tmp_path, Wire(sites), caplog)
    assert b"rare trade" not in learnt
    withheld = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"]
    assert withheld[0]["withheld"] and not withheld[1]["withheld"]


def test_the_first_site_to_come_is_not_asked_about_columns_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private = people(90, 5).assign(note=["secret ward", "none"] * 45)
    sites = {"west": site_folder(tmp_path / "sites", "west", private)}
    sites |= {name: site_folder(tmp_path / "sites", name, people(90, n)) for n, name in enumerate(("north", "south"))}
    wire = Wire(sites)
    wire.away = {"north", "south"}
    after(4, wire.away.clear, wire)
    plan = config(rules={"patience": 30.0}, training={"rounds": 1})
    assert_absent(lead(plan, tmp_path, wire, caplog), "secret ward")
    assert b"note" in wire.sent and [kind for kind, _ in wire.asked].count("train") == 1


def test_what_single_sites_answered_is_their_coordinators_own(tmp_path: Path) -> None:
    """Whatever the umask, and if the folder was there before."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)
    before = os.umask(0)
    try:
        coordinate(config(("north", "south"), training={"rounds": 1}), tmp_path / "run", world(tmp_path, (40, 40)))
    finally:
        os.umask(before)
    assert (tmp_path / "run" / "sites.json").exists() and (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    private = [tmp_path / "sites" / name / kept for name in ("north", "south") for kept in (".cache", ".answered")]
    assert {folder.stat().st_mode & 0o777 for folder in private} == {0o700}
