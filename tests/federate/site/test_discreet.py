"""Sentences that leave a site name no path and no file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffalm.federate.federation_config import LocalData, LocalImages, LocalTable
from ffalm.federate.site.discreet import discreet

FOLDER = Path("/srv/fed/north")
TABLE = LocalTable("/data/ward 7/stays.csv")
IMAGES = LocalImages("/data/scans", "/data/scans/who.csv")


@pytest.mark.parametrize(
    ("data", "said", "told"),
    [
        (TABLE, "'/data/ward 7/stays.csv' has no column 'temp.max'.", "(its file) has no column 'temp.max'."),
        (TABLE, "[Errno 13] Permission denied: '/data/ward 7/stays.csv'", "[Errno 13] Permission denied: (its file)"),
        (TABLE, "The file /srv/fed/north/site.toml cannot be read.", "The file site.toml cannot be read."),
        (TABLE, "There is no plugin /opt/own/rule.py: name it.", "There is no plugin (a path): name it."),
        (TABLE, "The label is yes and/or no.", "The label is yes and/or no."),
        (IMAGES, "There is no folder /data/scans: name it.", "There is no folder (its folder): name it."),
        (IMAGES, "'/data/scans/who.csv' is empty.", "(its labels) is empty."),
        (IMAGES, "Cannot read the image /data/scans/a b/smith.png: no.", "Cannot read the image (its folder): no."),
        (IMAGES, "3 images cannot be read, first 'smith.JPG'.", "3 images cannot be read, first (one of its files)."),
    ],
)
def test_a_place_is_put_as_what_it_is_and_no_image_is_named(data: LocalData, said: str, told: str) -> None:
    assert discreet(said, FOLDER, data) == told


def test_a_file_in_the_sites_folder_is_no_exception() -> None:
    assert discreet(f"'{FOLDER}/smith.csv' is empty.", FOLDER, LocalTable("smith.csv")) == "(its file) is empty."
