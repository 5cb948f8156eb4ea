"""The attack tables of docs/security.md can be made."""

from __future__ import annotations

import sys

import pytest

from benchmarks import attacked_histograms, attacks


def test_every_attack_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["attacks", "--rounds", "1", "--rows", "400", "--liars", "1"])
    monkeypatch.setattr(attacks, "DEFENCES", {name: attacks.DEFENCES[name] for name in ("none", "krum")})
    attacks.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == list(attacks.ATTACKS)
    assert all(line.count(" / ") == len(attacks.DEFENCES) for line in lines)


def test_several_seeds_give_what_is_lost_against_honest_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["attacks", "--rounds", "1", "--rows", "400", "--liars", "1", "--seeds", "2", "--defences", "none"]
    monkeypatch.setattr(sys, "argv", asked)
    monkeypatch.setattr(attacks, "ATTACKS", ("none", "update x -9"))
    attacks.main()
    assert "| none | 0 | 0.0 (worst 0.0) / 0.0 (worst 0.0) |" in capsys.readouterr().out


def test_lies_about_scores_fit_the_counts_of_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["attacked_histograms", "--seeds", "1", "--rows", "2000"])
    monkeypatch.setattr(attacked_histograms, "ATTACKS", {"1 logit": 1})
    attacked_histograms.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 1 + 2 * len(attacked_histograms.ATTACKS)
