"""One answer changed at a time, compared with the base seed by seed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from tests.reproduce.conftest import FakeRunner, outcome

from ffalm.errors import UserError
from ffalm.models import ResNet18
from ffalm.report.rendering import to_csv
from ffalm.reproduce.request import Request
from ffalm.reproduce.sensitivity import base_request, compared, diagnostics, findings, measure, table, tidy, variants


def test_every_other_answer_is_tried_once(data_root: Path) -> None:
    labels = [
        f"{variant.choice.name}: {variant.answer}" for variant in variants(Request(data_root=str(data_root)), "utkface")
    ]
    assert labels == [
        "partition: even",
        "partition: plain",
        "grouping: darker_vs_rest",
        "grouping: white_vs_rest",
        "grouping: black_vs_white",
        "split: fixed",
        "image-size: 128",
        "local-epochs: 3",
        "round: best",
        "schedule: released-code",
        "schedule: safe",
        "schedule: recommended",
        "dual-data: last_batch",
        "dual-data: epoch_mean",
        "dual-bound: 1",
        "fairfed: authors",
        "fpfl: positive_part",
    ]


def test_some_questions_can_be_asked_alone(data_root: Path) -> None:
    asked = Request(data_root=str(data_root), varied=("split", "fpfl"))
    assert [f"{variant.choice.name}: {variant.answer}" for variant in variants(asked, "utkface")] == [
        "split: fixed",
        "fpfl: positive_part",
    ]
    with pytest.raises(UserError, match="did you mean 'split'"):
        Request(varied=("splits",))


def test_answers_that_cannot_go_together_are_left_out_unless_asked_for(data_root: Path) -> None:
    large = Request(data_root=str(data_root), chosen={"image-size": "128"})
    assert "head: fairalm" in [f"{variant.choice.name}: {variant.answer}" for variant in variants(large, "utkface")]
    released = Request(data_root=str(data_root), chosen={"image-size": "128", "head": "fairalm"})
    assert "image-size: 64" not in [
        f"{variant.choice.name}: {variant.answer}" for variant in variants(released, "utkface")
    ]
    assert released.config("utkface", [0.3], released.entries()).model == ResNet18(head="fairalm")
    assert released.folder_name("utkface") == "utkface-image-size-128-head-fairalm"
    with pytest.raises(UserError, match="--head fairalm needs --image-size 128"):
        variants(Request(data_root=str(data_root), varied=("head",)), "utkface")


def test_of_several_schedules_the_first_is_the_base(data_root: Path) -> None:
    base = base_request(Request(data_root=str(data_root), chosen={"schedule": "safe,paper"}))
    labels = [f"{variant.choice.name}: {variant.answer}" for variant in variants(base, "utkface")]
    assert "schedule: paper" in labels
    assert "schedule: safe" not in labels
    assert "dual-bound: none" in labels
    assert "dual-bound: 1" not in labels


def test_runs_are_shared_with_the_tables(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    measure(Request(data_root=str(data_root), seeds=(0, 1)), tmp_path, runner, "utkface")
    folders = [folder.relative_to(tmp_path).parts[0] for _, folder in runner.asked]
    assert folders[0] == "utkface"
    assert "utkface-partition-plain" in folders
    assert "utkface-image-size-128" in folders
    keys = [contender.key for contender in runner.asked[0][0].entries]
    assert keys[:3] == ["ffalm-paper", "fairfed", "fpfl"]
    assert "ffalm-paper-last_batch" in keys


def test_changes_are_paired_by_seed_with_students_interval() -> None:
    base = [outcome("x", "ffalm", seed, dpd=0.1 * seed) for seed in range(3)]
    moved = [outcome("y", "ffalm", seed, dpd=0.1 * seed + gap) for seed, gap in enumerate((0.01, 0.02, 0.03))]
    first, second = compared("ffalm", {("base", "x"): base, ("partition", "plain"): moved})
    assert first.changes == {}
    change = second.changes["dpd"]
    assert change.mean == pytest.approx(0.02)
    margin = 4.302653 * 0.01 / 3**0.5
    assert change.interval == pytest.approx((0.02 - margin, 0.02 + margin))
    assert not change.clear


def test_clear_changes_are_bold_and_read_out() -> None:
    base = [outcome("x", "ffalm", seed, dpd=0.1) for seed in range(3)]
    moved = [outcome("y", "ffalm", seed, dpd=0.2 + 0.001 * seed) for seed in range(3)]
    effects = compared("ffalm", {("base", "FFALM (paper)"): base, ("partition", "plain"): moved})
    shown = table(effects, "title")
    base_row, moved_row = (one.cells for one in shown.rows)
    assert base_row[0].value == "FFALM (paper), base"
    assert (moved_row[2].value, shown.columns[2].aside(moved_row[2]), moved_row[2].bold) == ("+10.10", "± 0.25", True)
    told = findings(effects)
    assert "DPD is clearly changed by partition: plain (+10.10 points)." in told
    assert "No choice clearly changed accuracy." in told
    assert "by chance alone" in told[-1]


def test_one_seed_gives_no_verdict() -> None:
    effects = compared("ffalm", {("base", "x"): [outcome("x", "ffalm")], ("a", "b"): [outcome("y", "ffalm", dpd=0.9)]})
    assert "nothing can be called clear" in findings(effects)[-1]


def test_the_joint_metric_needs_no_run(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    effects = measure(Request(data_root=str(data_root), seeds=(0, 1)), tmp_path, runner, "utkface")
    (joint,) = [effect for effect in effects if effect.label == "metric: joint"]
    base = effects[0].summary.cells["dpd"].mean
    assert joint.changes["dpd"].mean == pytest.approx(0.3 - base)
    assert joint.changes["accuracy"].mean == 0.0
    assert "metric: joint" not in [one.cells[0].value for one in diagnostics(effects).rows]
    assert "metric: piecewise" not in [effect.label for effect in effects]  # these runs do not know it


def test_the_csv_has_a_line_for_every_answer_and_metric(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    effects = measure(Request(data_root=str(data_root), seeds=(0, 1)), tmp_path, runner, "utkface")
    rows = list(csv.DictReader(io.StringIO(to_csv(tidy(effects)))))
    assert len(rows) == 3 * len(effects)
    assert (rows[0]["choice"], rows[0]["answer"], rows[0]["difference"]) == ("base", "FFALM (paper)", "")
    plain = next(row for row in rows if row["answer"] == "plain" and row["metric"] == "dpd")
    assert float(plain["difference"]) == pytest.approx(0.05)
    assert plain["low"] == plain["high"] == ""  # both seeds differ by the same amount: there is no spread to go by
