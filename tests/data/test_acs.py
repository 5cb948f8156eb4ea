"""Census person files by state: tasks, filters, codes as categories, states as owners, downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.data.acs_maker import archive, persons, write_table
from typer.testing import CliRunner

import ffalm
from ffalm.cli import app
from ffalm.config import parse
from ffalm.data import acs_files
from ffalm.data.acs import Acs
from ffalm.data.acs_tasks import TASKS
from ffalm.data.download import fetch
from ffalm.data.encoding import TableEncoding
from ffalm.errors import UserError

CA, TX = 6, 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """California as a table, Texas as an archive."""
    made = tmp_path_factory.mktemp("acs")
    write_table(made, CA, 800)
    (made / "csv_ptx.zip").write_bytes(archive(TX, 500))
    (made / "csv_hca.zip").write_bytes(b"households are something else")
    return made


def everybody() -> pd.DataFrame:
    return pd.concat([persons(CA, 800), persons(TX, 500)], ignore_index=True)


def test_income_is_asked_of_adults_who_worked(folder: Path) -> None:
    raw, rows = Acs(str(folder)).read(), everybody()
    kept = rows[(rows.AGEP > 16) & (rows.PINCP > 100) & (rows.WKHP >= 1).fillna(False) & (rows.PWGTP >= 1)]
    assert raw.y.tolist() == (kept.PINCP > 50_000).astype(int).tolist()
    assert raw.task.label_names == ("at most 50,000", "over 50,000")
    assert raw.notes[0] == f"{len(kept):,} of 1,300 persons pass the filter of the task income."
    assert [raw.task.group_names[code] for code in raw.group[:9]] == kept.SEX.map({1: "male", 2: "female"})[:9].tolist()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_loads_with_its_public_features(folder: Path, task: Any) -> None:
    raw = Acs(str(folder), task=task).read()
    assert tuple(raw.features) == TASKS[task].features
    assert 0 < raw.y.mean() < 1
    assert TASKS[task].target not in raw.features
    data = raw.encoded()
    assert data.train.x.isfinite().all()
    assert len(data.train) + len(data.validation) + len(data.test) == len(raw.y)


def test_codes_are_categories_and_quantities_are_numbers(folder: Path) -> None:
    names = TableEncoding.of(Acs(str(folder)).read().summary()).features
    assert {"AGEP", "SCHL", "WKHP", "MAR=3", "SEX=female", "RAC1P=White", "COW=(missing)"} <= set(names)
    assert not {"MAR", "OCCP", "POBP", "RELP", "COW"} & set(names)


def test_the_rarest_codes_of_a_column_are_one_category(folder: Path) -> None:
    raw = Acs(str(folder), most_categories=20).read()
    column = raw.features["OCCP"]
    assert len(column.cat.categories) == 20 and column.cat.categories[-1] == "other"
    assert "OCCP" in raw.notes[1]
    whole = Acs(str(folder), most_categories=1000).read().features["OCCP"]
    frequent = whole.iloc[raw.parts[0]].value_counts().index[0]
    assert ((column == frequent) == (whole == frequent)).all()
    assert (column.isna() == whole.isna()).all()


def test_every_state_is_a_client_with_held_out_rows_unless_a_partition_is_named(folder: Path) -> None:
    federation = ffalm.load("acs", root=str(folder))
    assert federation.client_names == ("CA", "TX")
    own = federation.own_parts("test")
    assert own is not None and all(len(one) > 20 for one in own)
    section = {"data": {"source": "acs", "root": str(folder)}, "algorithms": {"fedavg": {}}}
    assert parse(section).partition.kind == "silos"
    assert parse({**section, "partition": {"alpha": 0.3}}).partition.kind == "plain"
    assert len(ffalm.load("acs", root=str(folder), partition="plain", clients=4).clients) == 4


def test_some_states_can_be_chosen(folder: Path) -> None:
    assert Acs(str(folder), states=("tx",)).read().owner_names == ("TX",)
    assert Acs(str(folder), states=("tx, CA",)).read().owner_names == ("CA", "TX")
    with pytest.raises(UserError, match=r"no PUMS person file of NY.*--states NY"):
        Acs(str(folder), states=("NY",)).read()
    with pytest.raises(UserError, match="There is no state 'XX'"):
        Acs(str(folder), states=("XX",)).read()


def test_groups_can_be_races_crossed_or_one_against_the_rest(folder: Path) -> None:
    race = Acs(str(folder), group="RAC1P", min_group_size=15).read().task
    assert race.group_names[: race.compared] == ("Asian", "Black", "other race", "two or more races", "White")
    crossed = Acs(str(folder), group="SEX,RAC1P").read().task
    assert "female, White" in crossed.group_names[: crossed.compared]
    assert Acs(str(folder), group="RAC1P", against_rest=("White",)).read().task.group_names == ("rest", "White")
    assert "SEX" not in Acs(str(folder), use_group_as_feature=False).read().features


def test_a_file_of_the_whole_country_and_later_column_names_are_read(tmp_path: Path) -> None:
    renamed = everybody().rename(columns={"RELP": "RELSHIPP", "JWTR": "JWTRNS", "ST": "STATE"})
    renamed[:900].to_csv(tmp_path / "psam_pusa.csv", index=False)
    renamed[900:].to_csv(tmp_path / "psam_pusb.csv", index=False)
    assert len(Acs(str(tmp_path), task="travel_time", group="RAC1P", against_rest=("White",)).read().owner_names) == 2
    one = Acs(str(tmp_path), states=("CA",), task="employment").read()
    assert one.owner_names == ("CA",) and one.notes[0].startswith("800 of 800 persons")
    with pytest.raises(UserError, match="hold nobody of NY: get the file with `ffalm data get acs --states NY`"):
        Acs(str(tmp_path), states=("CA", "NY")).read()


def test_a_table_is_preferred_to_the_archive_that_holds_it(tmp_path: Path) -> None:
    write_table(tmp_path, CA, 30)
    (tmp_path / "csv_pca.zip").write_bytes(archive(CA, 30))
    assert [path.name for path in acs_files.person_files(str(tmp_path))] == ["psam_p06.csv"]


def test_files_of_different_survey_years_are_not_mixed(tmp_path: Path) -> None:
    for file, state, adjustment in (("psam_p06.csv", CA, 1013097), ("psam_p48.csv", TX, 1010145)):
        persons(state, 60).assign(ADJINC=adjustment).to_csv(tmp_path / file, index=False)
    with pytest.raises(UserError, match=r"psam_p06.csv' and .*psam_p48.csv' are of different survey years"):
        Acs(str(tmp_path)).read()
    assert Acs(str(tmp_path), states=("TX",)).read().owner_names == ("TX",)
    persons(TX, 60).assign(ADJINC=1013097).to_csv(tmp_path / "psam_p48.csv", index=False)
    assert Acs(str(tmp_path)).read().owner_names == ("CA", "TX")


def test_a_column_that_the_files_lack_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"has no column RACE: .* such as SEX and RAC1P"):
        Acs(str(folder), group="RACE").read()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("psam_p06.csv", b"AGEP,SEX\n30,1\n", "has no column COW"),
        ("csv_pca.zip", b"no archive", "download it again"),
        ("other.csv", b"AGEP\n1\n", "has no PUMS person file"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=told):
        Acs(str(tmp_path)).read()


def test_text_in_a_column_of_codes_is_refused_in_a_sentence(tmp_path: Path) -> None:
    persons(CA, 5).assign(AGEP="old").to_csv(tmp_path / "psam_p06.csv", index=False)
    with pytest.raises(UserError, match="not a PUMS person file as published"):
        Acs(str(tmp_path)).read()


class Publisher(BaseHTTPRequestHandler):
    """Has the archive of Texas in 2018, and sends a page in place of that of California."""

    def do_GET(self) -> None:
        found = {"/2018/1-Year/csv_ptx.zip": archive(TX, 20), "/2018/1-Year/csv_pca.zip": b"<html>sorry</html>"}
        if self.path not in found:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(found[self.path])))
        self.end_headers()
        self.wfile.write(found[self.path])

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Publisher)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(acs_files, "SITE", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def get(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["data", "get", "acs", "--root", str(folder), *options])


@pytest.mark.usefixtures("publisher")
def test_archives_of_states_are_downloaded_and_checked(tmp_path: Path) -> None:
    told = get(tmp_path, "--states", "tx", "--year", "2018")
    assert told.exit_code == 0 and f"Downloaded {tmp_path / 'csv_ptx.zip'} and checked it." in told.output
    assert len(acs_files.person_files(str(tmp_path), ["TX"])) == 1
    assert "is already there and was kept, whatever its year" in get(tmp_path, "--states", "TX").output
    with pytest.raises(UserError, match=r"not the published csv_pca.zip \(it is not a complete zip archive\)"):
        fetch(acs_files.publication(["CA"], 2018), tmp_path)
    with pytest.raises(UserError, match="answered 404"):
        fetch(acs_files.publication(["TX"], 2019), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["csv_ptx.zip"]


def test_a_download_without_network_says_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(acs_files, "SITE", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"2018/1-Year/csv_pca.zip cannot be reached.*download csv_pca.zip from https"):
        fetch(acs_files.publication(["CA"], 2018), tmp_path)
    with pytest.raises(UserError, match="--states CA,TX"):
        fetch(acs_files.publication([], 2018), tmp_path)
    assert len(acs_files.publication(["all"], 2018).files) == 51


def test_the_publishers_address_is_that_of_the_survey_year() -> None:
    (file,) = acs_files.publication(["CA"], 2021).files
    assert file.url == "https://www2.census.gov/programs-surveys/acs/data/pums/2021/1-Year/csv_pca.zip"


def test_loading_is_the_same_each_time(folder: Path) -> None:
    first, again = Acs(str(folder)).load(), Acs(str(folder)).load()
    assert np.array_equal(first.train.x, again.train.x)
