"""What a round goes through under privacy, and the ledger of what was spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Measure, RoundReport, State
from ffalm.algorithms.checks import weights_and_state
from ffalm.errors import UserError
from ffalm.fairness import Tally
from ffalm.privacy import changes, tallies
from ffalm.privacy.accountant import epsilon_of
from ffalm.privacy.noise import Noise
from ffalm.privacy.steps import averaged_step, own_steps
from ffalm.randomness import Purpose
from ffalm.run_settings import Privacy

#: The entry of the server's state that says what each client has spent, as mu^2. Snapshots keep it, so that a run
#: that is resumed remembers; algorithms do not see it.
LEDGER = "privacy_spent"

_WHOLE = (Measure.RECEIVED, Measure.TRAINED)  # Tallies of all of a client's rows, whose counts are public


@dataclass(frozen=True)
class Mechanism:
    """The settings of a run's privacy and where its noise comes from."""

    settings: Privacy
    noise: Noise
    frozen: frozenset[str] = frozenset()  # entries of the model that no client trains, which need no noise

    @staticmethod
    def check(algorithm: Algorithm) -> None:
        """Refuse an algorithm without clients to protect, or whose Tallies or uploads cannot be given noise."""
        if algorithm.trains_on != "clients":
            raise UserError(
                f"{algorithm.title} trains without a federation, so there are no clients' answers to protect: use "
                "another algorithm, or none of the privacy settings."
            )
        if algorithm.uploads:
            raise UserError(
                f"{algorithm.title} uploads more than models and Tallies ({', '.join(algorithm.uploads)}), and privacy "
                "puts noise on those alone: use another algorithm, or none of the privacy settings."
            )
        if algorithm.products:
            raise UserError(
                f"{algorithm.title} compares the clients' vectors one by one, and privacy puts noise on their mean "
                "alone: use another algorithm, or none of the privacy settings."
            )
        if not algorithm.separable and algorithm.measure not in (Measure.NOTHING, *_WHOLE):
            raise UserError(
                f"{algorithm.title} needs the Tally of each client's {algorithm.measure.value}, and which rows those "
                "are is not public: under privacy let it measure the received or the trained model."
            )

    def update(
        self, algorithm: Algorithm, state: State, report: RoundReport, states: Sequence[State] = ()
    ) -> tuple[Tensor, State]:
        """The clients' weights and the server's next state, both from noisy and public numbers alone.

        `states` are those of clients that took the dual step themselves, in place of Tallies. The ledger is charged for
        the whole round, the model included.
        """
        own = {name: value for name, value in state.items() if name != LEDGER}
        multiplier, round = self.settings.of_tallies, report.round
        measured = report.tally is not None or bool(states)
        if not measured:
            weights, after = weights_and_state(algorithm, algorithm.update(own, report))
        elif algorithm.separable:
            drawn = averaged_step(
                algorithm,
                own,
                report,
                states or own_steps(algorithm, own, report),
                self.settings.of_steps(algorithm.step_norm),
                multiplier,
                lambda size: self.noise.normal(Purpose.TALLY_NOISE, round, size),
            )
            weights, after = report.shares(), algorithm.project(drawn)
        else:
            noisy = replace(report, tally=self._rows(report))
            weights, after = weights_and_state(algorithm, algorithm.update(own, noisy))
        return weights, {**after, LEDGER: self.charged(state, report, measured)}

    def charged(self, state: State, report: RoundReport, measured: bool) -> Tensor:
        """The ledger after a round, wherever its noise was added; `measured` says whether clients reported Tallies."""
        ledger = self._ledger(state, report)
        spent = _cost(self.settings.noise) + (_cost(self.settings.of_tallies) if measured else 0.0)
        return ledger + torch.zeros_like(ledger).masked_fill(report.taking_part, spent)

    def merge(
        self, sent: changes.Named, models: Sequence[changes.Named], weights: Tensor, round: int
    ) -> dict[str, Tensor]:
        """The next model: the clients' changes, each bounded, in a weighted mean with noise."""
        trained = {name: value for name, value in sent.items() if name not in self.frozen}
        draws = self.noise.normal(Purpose.MODEL_NOISE, round, changes.size_of(trained))
        mean = changes.noisy_mean(trained, models, weights.tolist(), self.settings.clip, self.settings.noise, draws)
        return {name: mean.get(name, value) for name, value in sent.items()}

    def scores(self, reported: Sequence[Tally], round: int) -> Tally:
        """The sum of the sites' Tallies of the final model, with noise; `scored` charges it to the ledger."""
        draws = self.noise.normal(Purpose.SCORE_NOISE, round, tallies.size_of(reported[0]))
        return tallies.noisy_tally(reported, self.settings.loss_bound, self.settings.of_tallies, draws)

    def scored(self, state: State) -> State:
        """The state whose ledger is charged for scores, to everybody."""
        return {**state, LEDGER: state[LEDGER] + _cost(self.settings.of_tallies)}

    def epsilon(self, state: State) -> float:
        """What has been spent so far, at the settings' delta, by the client that spent most."""
        return epsilon_of(math.sqrt(float(state[LEDGER].max())), self.settings.delta)

    def _ledger(self, state: State, report: RoundReport) -> Tensor:
        """What each client has spent; without a ledger, whatever was given out before this round had no noise."""
        before = 0.0 if report.round == 1 else math.inf
        return state.get(LEDGER, torch.full(report.sizes.shape, before, dtype=torch.float64))

    def _rows(self, report: RoundReport) -> Tally:
        """Each participating client's Tally with noise of its own."""
        assert report.tally is not None
        rows = []
        for client, part in enumerate(report.taking_part.tolist()):
            row = report.tally[client]
            draws = self.noise.normal(Purpose.TALLY_NOISE, report.round, tallies.size_of(row), client)
            noisy = tallies.noisy_tally([row], self.settings.loss_bound, self.settings.of_tallies, draws)
            rows.append(noisy if part else replace(row, confusion=row.confusion.double()))
        return Tally.stack(rows)


def _cost(multiplier: float) -> float:
    """mu^2 of a mechanism: replacing a client moves its result by at most 2 / multiplier standard deviations."""
    mu = 2 / multiplier if multiplier > 0 else math.inf
    return mu * mu  # not mu**2, which raises if it is too large for a float
