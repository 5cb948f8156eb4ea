"""Score histograms of lying sites: whose are left out, and with how many rows a site counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.federate.coordinator.test_federation_answer import Scoring, facts, plan, set_in_site, thresholds
from tests.federate.makers import NAMES, World, config, people, site_folder, world

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.histogram_rules import bounded, bounded_tallies, farthest, unlike
from ffalm.federate.histogram_bytes import PARTS, packed_histograms, unpacked_histograms


def histogram(site: int, rows: int = 200, shift: float = 0.0, groups: int = 2) -> ScoreHistogram:
    """Scores of a site's people; `shift` moves those of the first group up, and all others' down."""
    draw = torch.Generator().manual_seed(site)
    label = torch.randint(2, (rows,), generator=draw)
    group = torch.randint(groups, (rows,), generator=draw)
    scores = torch.randn(rows, generator=draw) + label - 0.5 + shift * (1.0 - 2.0 * (group > 0))
    return ScoreHistogram.of(scores, torch.zeros_like(label), label, group, (2, groups), 1)


def test_a_site_with_scores_unlike_the_others_is_left_out_however_many_rows_it_claims() -> None:
    own = {str(site): {"validation": histogram(site)} for site in range(9)}
    assert farthest(own, 1) == farthest(own, 3) == []
    for times in (1, 1000):
        lying = histogram(9, shift=1.5)
        lying = replace(lying, counts=lying.counts * times)
        assert farthest({**own, "liar": {"validation": lying}}, 1) == ["liar"]
        both = {**own, "liar": {"validation": lying}, "second": {"validation": histogram(10, shift=-1.5)}}
        assert sorted(farthest(both, 2)) == ["liar", "second"] and len(farthest(both, 1)) == 1


def test_sites_that_lack_a_group_or_all_rows_are_compared_by_the_others() -> None:
    own = {str(site): {"validation": histogram(site, groups=1 + site % 2)} for site in range(6)}
    wide = {
        site: {"validation": replace(histogram(0), counts=torch.nn.functional.pad(one["validation"].counts, (0, 1)))}
        if one["validation"].groups == 1 else one
        for site, one in own.items()
    }  # fmt: skip
    nobody = replace(histogram(0), counts=torch.zeros_like(histogram(0).counts))
    assert farthest({**wide, "empty": {"validation": nobody}}, 1) == []


def test_no_site_counts_with_more_than_its_share_of_rows() -> None:
    own = {str(site): {"validation": histogram(site)} for site in range(5)}
    many = histogram(5)
    own["large"] = {"validation": replace(many, counts=many.counts * 1000)}
    found = bounded(own, 0.2)
    rows = {site: int(one["validation"].counts.sum()) for site, one in found.items()}
    assert all(rows[site] == 200 for site in rows if site != "large")
    assert 240 <= rows["large"] <= 250 <= 0.2 * sum(rows.values()) + 2
    scaled = found["large"]["validation"].counts.cumsum(0).double()
    assert float((scaled - many.counts.cumsum(0) * 1.25).abs().max()) <= 1 and bool((scaled.diff(dim=0) >= 0).all())
    assert bounded(own, 1.0)["large"]["validation"] is own["large"]["validation"]


def lie(true: ScoreHistogram) -> ScoreHistogram:
    """The same cells, the first group's scores high and the second's low."""
    counts = torch.zeros_like(true.counts)
    counts[480, ..., 0], counts[30, ..., 1] = true.counts[..., 0].sum(0), true.counts[..., 1].sum(0)
    return replace(true, counts=counts)


def test_a_liars_histogram_does_not_move_the_thresholds_of_a_federation(tmp_path: Path) -> None:
    honest, lying = (Scoring(one) for one in [world(tmp_path, (200, 150, 180, 170))] * 2)
    rules = {"aggregation": "trimmed", "max_share": 0.5}
    asked = plan(sites=NAMES, rules=rules)
    coordinate(asked, tmp_path / "honest", honest, pause=0.001)
    assert not any(told.get("no_histograms") for told in facts(tmp_path / "honest").values())
    content = honest.scores["east"].tensors["scores"]["histograms"]
    true = unpacked_histograms(content, Agreement.load(tmp_path / "honest" / "encoding.json").task)
    assert true is not None
    lying.histograms = {"east": packed_histograms({PARTS[part]: lie(one) for part, one in true.items()})}
    coordinate(asked, tmp_path / "lying", lying, pause=0.001)
    assert "most unlike the others'" in facts(tmp_path / "lying")["east"]["no_histograms"]
    without = Scoring(honest)
    set_in_site(without, "east", histograms=False)
    coordinate(asked, tmp_path / "without", without, pause=0.001)
    assert thresholds(tmp_path / "lying") == thresholds(tmp_path / "without")


def tally(site: int, rows: int = 200, shift: float = 0.0, losses: float = 1.0) -> Tally:
    """A site's predictions; `shift` favours the first group, and `losses` are so many times the true ones there."""
    draw = torch.Generator().manual_seed(site)
    label, group = torch.randint(2, (2, rows), generator=draw)
    logits = torch.randn(rows, generator=draw) + label - 0.5 + shift * (1.0 - 2.0 * group)
    own = torch.nn.functional.softplus((1 - 2 * label) * logits).double()
    return Tally.of((logits > 0).long(), own * torch.where(group == 0, losses, 1.0), label, group, (2, 2))


def test_a_tally_unlike_the_others_is_left_out_however_many_rows_it_claims() -> None:
    own = {site: tally(site) for site in range(9)}
    assert unlike(own, 1) == unlike(own, 3) == []
    for lie in (tally(9, shift=1.5), tally(9, losses=3.0)):
        for times in (1, 1000):
            many = Tally(lie.confusion * times, lie.loss * times)
            assert unlike({**own, 9: many}, 1) == unlike({**own, 9: many}, 2) == [9]
    assert sorted(unlike({**own, 9: tally(9, shift=1.5), 10: tally(10, losses=3.0)}, 2)) == [9, 10]


def test_no_tally_counts_with_more_than_its_share_of_rows() -> None:
    many = tally(5)
    own = {**{site: tally(site) for site in range(5)}, 5: Tally(many.confusion * 1000, many.loss * 1000)}
    found = bounded_tallies(own, 0.2)
    assert all(found[site] is own[site] for site in range(5))
    assert 240 <= int(found[5].count.sum()) <= 250
    assert torch.allclose(found[5].loss / found[5].count, many.loss / many.count)
    assert bounded_tallies(own, 1.0)[5] is own[5]


class Measuring(World):
    """Sites of which the last tells, of so many times its held-out rows, that only one group is ever favoured."""

    times = 1000

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        found = super()._answer(kind, name, message)
        if name != NAMES[-1] or not isinstance(found, Message):
            return found
        if "counts" in found.tensors:
            found.tensors["counts"]["validation"] *= self.times
        for part in {"validation", "test"} & found.tensors.keys() if kind in ("train", "score") else ():
            rows = found.tensors[part]["confusion"].sum(0) * (self.times if part == "validation" else 1)
            found.tensors[part]["confusion"] = torch.stack(
                [torch.stack([rows[:, 0], 0 * rows[:, 1]], 1), torch.stack([0 * rows[:, 0], rows[:, 1]], 1)]
            )
            found.tensors[part]["loss"] = rows.double()
        return found


def test_a_liars_held_out_tally_does_not_set_the_multipliers_of_a_federation(tmp_path: Path) -> None:
    folders = {name: site_folder(tmp_path, name, people(240, seed)) for seed, name in enumerate(NAMES)}

    def multipliers(kind: type[World], run: str, **rules: object) -> torch.Tensor:
        algorithm = {"name": "lagrangian", "constraint": "dp"}
        asked = config(NAMES, algorithm=algorithm, rules=rules, training={"rounds": 6, "batch_size": 16, "lr": 0.2})
        coordinate(asked, tmp_path / run, kind(folders), pause=0.001)
        lines = (tmp_path / run / "history.jsonl").read_text().splitlines()
        return torch.tensor([json.loads(line)["duals"] for line in lines])

    honest = multipliers(World, "honest")
    assert float((multipliers(Measuring, "believed") - honest).abs().max()) > 0.5
    rules = {"aggregation": "trimmed", "max_share": 0.4}
    held = multipliers(Measuring, "held", **rules)
    assert float((held - honest).abs().max()) < 0.1
    assert "its Tally is most unlike" in (tmp_path / "held" / "history.jsonl").read_text()


@pytest.mark.parametrize("gap", ["held_out", "clients"])
def test_held_out_losses_far_beyond_the_others_are_refused_whether_an_algorithm_reads_them_or_not(
    tmp_path: Path, gap: str
) -> None:
    def louder(message: Message) -> Message:
        held_out = message.tensors["validation"]
        return replace(message, tensors={**message.tensors, "validation": {**held_out, "loss": held_out["loss"] + 1e6}})

    sites = world(tmp_path, (90, 70, 80), mishaps={("south", 2): louder})
    coordinate(config(algorithm={"name": "ffalm", "gap": gap}), tmp_path / "run", sites, pause=0.001)
    quarantined = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[1])["quarantined"]
    assert quarantined.keys() == {"south"} and "mean loss on the validation rows" in quarantined["south"]
