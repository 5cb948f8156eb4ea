"""`ffalm predict`, `ffalm card` and `ffalm export`: using a trained model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ffalm.cli.text_format import TrainedDecimal, TrainedEncoding, TrainedSeparator, text_format
from ffalm.errors import require

if TYPE_CHECKING:
    import pandas as pd

    from ffalm.data.preprocessing import Preprocessing
    from ffalm.trained_models.trained_model import TrainedModel

_Folder = Annotated[
    Path, typer.Argument(help="Folder of a study, a run, a federation or a saved model.", show_default=False)
]
_Alpha = Annotated[float | None, typer.Option(help="Dirichlet alpha of the answer to use, for a study with several.")]
_Site = Annotated[str | None, typer.Option(help="Site whose thresholds to apply, where each site has its own.")]

_PREDICTIONS = ",prediction,probability"  # in the header of what `predict` writes


def predict(
    model: _Folder,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file, or folder of images.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option(help="Column of groups, for thresholds by group; several, comma-separated, are crossed."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write. Default: print to the terminal.")] = None,
    copy: Annotated[
        str | None,
        typer.Option(help="Columns of the file to copy, such as an id; several, comma-separated. Default: none."),
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of every label.")] = False,
    separator: TrainedSeparator = None,
    decimal: TrainedDecimal = None,
    encoding: TrainedEncoding = None,
    alpha: _Alpha = None,
    site: _Site = None,
) -> None:
    """Predict the label of new rows: a CSV with one line per row.

    The model is that of a run or a federation, or the one that answers a study's fairness target, with its thresholds.
    """
    from ffalm.data.preprocessing import Preprocessing
    from ffalm.studies.model_folders import load_model
    from ffalm.system.files import require_output

    require_output(out, data)
    written = text_format(separator, decimal, encoding)
    found = load_model(model, alpha=alpha, site=site)
    reader = replace(found.description.preprocessing or Preprocessing(), **written)
    table, notes = predictions(found, reader, data, group, proba)
    if copy is not None:
        table = _with_columns(table, reader, data, copy)
    for note in notes:
        print(f"ffalm: {note}", file=sys.stderr)
    text = table.to_csv(index=False, lineterminator="\n")
    _write_or_print(text, out, _PREDICTIONS, "a file of predictions", f" ({len(table):,} rows)")


def card(
    model: _Folder,
    out: Annotated[Path | None, typer.Option(help="Markdown file to write. Default: print to the terminal.")] = None,
    alpha: _Alpha = None,
    site: _Site = None,
) -> None:
    """Write the model card: use, data, groups, metrics with intervals, fairness target, privacy and limits."""
    from ffalm.report.model_card import CARD_MARK
    from ffalm.studies.model_folders import load_model

    _write_or_print(load_model(model, alpha=alpha, site=site).card(), out, CARD_MARK, "a model card")


def export(
    model: _Folder,
    file: Annotated[Path, typer.Argument(help="ONNX file to write.", show_default=False)],
    alpha: _Alpha = None,
    site: _Site = None,
) -> None:
    """Write the model as ONNX: columns in, label and probabilities out, thresholds included."""
    from ffalm.studies.model_folders import load_model

    require(file.suffix == ".onnx" and not file.is_dir(), f"The output {file} must be a file that ends in .onnx.")
    print(f"Written: {load_model(model, alpha=alpha, site=site).to_onnx(file)}")


def _write_or_print(text: str, out: Path | None, mark: str, what: str, rows: str = "") -> None:
    from ffalm.system.files import require_replaceable, write_atomic

    if out is None:
        sys.stdout.write(text)
        return
    require(not out.is_dir(), f"The output {out} is a folder: name a file.")
    require_replaceable(out, mark, what)
    write_atomic(out, text)
    print(f"Written: {out}{rows}")


def _with_columns(table: pd.DataFrame, reader: Preprocessing, data: Path, copy: str) -> pd.DataFrame:
    """The predictions with columns copied from the input file, such as an id."""
    import pandas as pd

    from ffalm.data.table_values import listed_columns

    require("file" not in table, "--copy takes columns of a table; images have none.")
    frame = reader.read_verbatim(data)
    names = listed_columns(frame, [copy], str(data))
    own = [name for name in names if name in table]
    require(not own, f"--copy cannot take {' and '.join(map(repr, own))}: the predictions have such a column.")
    return pd.concat([table[["row"]], frame[names], table.drop(columns="row")], axis=1)


def predictions(
    model: TrainedModel, reader: Preprocessing, data: Path, group: str | None, proba: bool
) -> tuple[pd.DataFrame, list[str]]:
    """The label and its probability for each row, and notes for the user.

    `reader` is the model's preprocessing, with the text format of this file, which may differ from that of training.
    """
    import pandas as pd

    from ffalm.data.table_files import read_table

    preprocessing, names, notes = model.description.preprocessing, model.task.group_names, list[str]()
    rows = reader.read(data, group, names)
    if preprocessing is None:
        rows = read_table(str(data), reader.separator, reader.decimal, reader.encoding)[0]
    if preprocessing is not None and isinstance(rows, pd.DataFrame):
        for column, count in preprocessing.unseen(rows).items():
            notes.append(
                f"{count:,} of {len(rows):,} rows have a value of {column!r} that no training row had: it counts as "
                "none of the known ones."
            )
        notes += reader.doubts(data, rows)
    files = _image_names(rows, data, notes) if isinstance(rows, list) else None
    require(
        files is None or group is None or not model.by_group,
        "Images have no column of groups: thresholds by group are applied in Python, by "
        "`ffalm.load_model(FOLDER).predict(IMAGES, group=[...])` with the group of each image, in the order of "
        "their names.",
    )
    if model.by_group and group is None:
        notes.append(
            f"This model has a threshold for each group of {model.task.group!r}, and no --group was given: all rows "
            "get the single threshold, and the fairness target need not hold."
        )
    if group is not None and not model.by_group:
        notes.append("This model has no thresholds by group: --group changes nothing.")
        group = None
    features = model.features(rows)
    if group is not None and (without := int((model.group_numbers(rows, features, group) < 0).sum())):
        notes.append(
            f"{without:,} of {len(rows):,} rows have no group, or one that no training row had: they get the single "
            "threshold."
        )
    labels = model.decide(features if group is None else rows, group)
    chances = model.predict_proba(features)
    columns = {"prediction": [model.labels[code] for code in labels.tolist()]}
    table = pd.DataFrame({**columns, "probability": chances[range(len(labels)), labels.numpy()]})
    if proba:
        table = table.assign(**{f"probability of {name}": chances[:, place] for place, name in enumerate(model.labels)})
    table.insert(0, "row" if files is None else "file", range(1, len(table) + 1) if files is None else files)
    return table, notes


def _image_names(images: list[Path], data: Path, notes: list[str]) -> list[str]:
    """The file names of images; adds a note on the other files in their folder."""
    from ffalm.data.decode import ENDINGS

    names = [image.name for image in images]
    odd = next((name for name in names if name.encode(errors="ignore").decode() != name), None)
    require(odd is None, f"The name of the image {odd!r} is not UTF-8, in which predictions are written: rename it.")
    inside = sorted(data.iterdir()) if data.is_dir() else []
    shown = [one.name for one in inside if one.is_file() and not one.name.startswith(".")]
    others = [name for name in shown if not name.lower().endswith(ENDINGS)]
    if others:
        ends = ", ".join(ENDINGS)
        notes.append(f"Files whose names do not end in {ends} are left out: {len(others):,}, first {others[0]}.")
    return names
