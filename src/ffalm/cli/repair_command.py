"""`ffalm repair`: thresholds for scores made anywhere, so that predictions meet a fairness target."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.output import print_json, print_results
from ffalm.cli.text_format import Decimal, Encoding, Separator, text_format
from ffalm.errors import require
from ffalm.system.files import json_text, require_replaceable, write_atomic
from ffalm.targets.target import DEFAULT

if TYPE_CHECKING:
    import pandas as pd

    from ffalm.targets.score_repair import RepairedScores

_column = partial(typer.Option, rich_help_panel="Columns of the file")
_target = partial(typer.Option, rich_help_panel="Fairness target")
_judging = partial(typer.Option, rich_help_panel="Test rows and output")


def repair(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file of scored rows.", show_default=False)],
    label: Annotated[str, _column(help="Column of true outcomes.")],
    score: Annotated[str, _column(help="Column of scores; higher is more favourable.")],
    group: Annotated[str, _column(help="Column of groups; several, comma-separated, are crossed.")],
    favourable: Annotated[str | None, _column(help="Favourable value of the label. Default: 1.")] = None,
    id: Annotated[str | None, _column("--id", help="Column that names a row, for randomised draws.")] = None,
    decision: Annotated[
        float | None,
        _column(help="Score from which the model itself predicts favourable. Default: 0.5 for probabilities, else 0."),
    ] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    target: Annotated[str, _target(help='Such as "dpd <= 0.05" or "eod <= 0.05, impact_ratio >= 0.8".')] = DEFAULT,
    repair: Annotated[str, _target(help="Thresholds that may be used: single, groups or randomised.")] = "groups",
    confidence: Annotated[
        float | None,
        _target(
            help="Confidence with which gaps of calibration rows must be within the target. Default: 0.8, or less "
            "where that costs over a point of accuracy."
        ),
    ] = None,
    cost_false_favourable: Annotated[float, _target(help="Cost of a wrong favourable prediction.")] = 1.0,
    cost_false_unfavourable: Annotated[float, _target(help="Cost of a wrong unfavourable prediction.")] = 1.0,
    test: Annotated[Path | None, _judging(help="File of test rows with the same columns.")] = None,
    test_share: Annotated[float | None, _judging(help="Share of the rows to hold back as test rows.")] = None,
    seed: Annotated[int, _judging(help="Random seed of --test-share.")] = 0,
    out: Annotated[Path | None, _judging(help="Folder for repair.json and predictions.csv.")] = None,
    as_json: Annotated[bool, _judging("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose thresholds on any model's scores so that predictions meet a fairness target.

    The rows must not be those that the model was trained on. Thresholds are fitted to them and judged on test rows.
    """
    import pandas as pd

    from ffalm.targets.rate_table import Costs
    from ffalm.targets.score_repair import ScoredTable, repair_table
    from ffalm.targets.target import Target

    require(test is None or test_share is None, "--test and --test-share exclude each other: give one of them.")
    same = test is not None and test.exists() and file.exists() and test.samefile(file)
    require(not same, f"--test must name other rows than {file}, to which thresholds are fitted.")
    asked = Target.parse(target)
    names = {"score": score, "label": label, "group": group, **({} if id is None else {"id": id})}
    drawn, written = repair == "randomised", text_format(separator, decimal, encoding)
    frame = _read(file, names, drawn, written)
    table = ScoredTable.of(*_named(frame, names), favourable, repr(str(file)))
    parts = {"calibration": frame}
    held: ScoredTable | None = None
    if test is not None:
        parts["test"] = _read(test, names, drawn, written)
        held = table.like(*_named(parts["test"], names), repr(str(test)))
    elif test_share is not None:
        rows = table.split(test_share, seed)
        table, held = (table.take(some) for some in rows)
        parts = {part: frame.iloc[some] for part, some in zip(("calibration", "test"), rows, strict=True)}
    costs = Costs(cost_false_favourable, cost_false_unfavourable)
    result = repair_table(table, held, asked, repair, confidence, costs, decision)  # type: ignore[arg-type]
    if out is not None:
        _write(result, pd.concat([part.assign(part=name) for name, part in parts.items()]), out)
    _show(result, out, as_json)


def _read(file: Path, names: dict[str, str], drawn: bool, written: dict[str, Any]) -> pd.DataFrame:
    """The columns by role, each row's number and, if draws depend on it, its content: see `_content`."""
    import pandas as pd

    from ffalm.data.table_codes import code_columns
    from ffalm.data.table_files import read_table
    from ffalm.data.table_groups import group_column
    from ffalm.data.table_values import listed_columns, pick

    ids = [names["id"]] if "id" in names else []  # as they are written: 007 is another person than 7
    frame, _ = read_table(str(file), texts=ids, codes=code_columns([names["group"]]), **written)
    columns = {role: pick(frame, name, str(file)) for role, name in names.items() if role != "group"}
    columns["group"] = group_column(frame, listed_columns(frame, [names["group"]], str(file)), str(file))
    content = _content(frame.drop(columns=[columns["label"].name])) if drawn and "id" not in names else ""
    return pd.DataFrame({**columns, "row": range(1, len(frame) + 1), "content": content})


def _named(frame: pd.DataFrame, names: dict[str, str]) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Scores, labels and groups under their names in the file, for messages."""
    score, label, group = (frame[role].rename(names[role]) for role in ("score", "label", "group"))
    return score, label, group


def _content(frame: pd.DataFrame) -> Any:
    """What the draws of a row without an id depend on: its columns and the number of equal rows before it."""
    first, *others = (frame[name].astype(str) for name in frame.columns)
    content = first.str.cat(others, sep="\0", na_rep="")
    return content.str.cat(content.groupby(content).cumcount().astype(str), sep="\0")


def _write(result: RepairedScores, frame: pd.DataFrame, folder: Path) -> None:
    """The thresholds, and every row's prediction."""
    from ffalm.data.category_lookup import as_code
    from ffalm.report.repair_report import to_plain
    from ffalm.studies.study import make_folder

    make_folder(folder)
    require_replaceable(folder / "repair.json", '"thresholds"', "that of a repair")
    require_replaceable(folder / "predictions.csv", ",score,group,prediction", "that of a repair")
    key = "id" if "id" in frame else "row"
    ids = (frame["id"].map(as_code, na_action="ignore") if key == "id" else frame["content"]).to_numpy()
    names = result.label_names if len(result.label_names) == 2 else ("other", result.label_names[-1])
    predicted = result.predict(frame["score"].to_numpy(), frame["group"].to_numpy(), ids)
    predictions = frame[["part", key, "score", "group"]].assign(prediction=[names[one] for one in predicted])
    write_atomic(folder / "repair.json", json_text(to_plain(result), 2))
    write_atomic(folder / "predictions.csv", predictions.to_csv(index=False))


def _show(result: RepairedScores, out: Path | None, as_json: bool) -> None:
    from ffalm.report.repair_report import kinds, sentences, thresholds, to_plain, who_pays

    if as_json:
        print_json(to_plain(result))
        return
    tables = (kinds(result, brief=True), who_pays(result), thresholds(result))
    lines = [f"  {sentence}" for sentence in sentences(result)]
    if out is not None:
        lines.append(f"Written: {out / 'repair.json'} and {out / 'predictions.csv'}")
    print_results(tables, lines, f"Repair for {result.target}")
