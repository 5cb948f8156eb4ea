"""The answer to a fairness target on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.targets.answer import Answer


def show_answer(console: Console, answer: Answer) -> None:
    """Print the answer, who pays for it, and every candidate."""
    from ffalm.report.answer_report import candidates, sentences, sites, who_pays
    from ffalm.report.rendering import to_rich

    alpha = answer.chosen.alpha
    skew = "" if alpha is None else f" (alpha {alpha:g})"
    console.print(to_rich(candidates(answer, brief=True)))
    console.print(to_rich(who_pays(answer)))
    by_site = sites(answer)
    if by_site is not None:
        console.print(to_rich(by_site))
    console.print(f"Answer to {answer.target}{skew}", style="bold", highlight=False, markup=False)
    for sentence in sentences(answer):
        console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
