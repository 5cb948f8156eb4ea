"""The paper's theory put to the test: its example, its rate and its proof, in numbers.

`example` and `rate` compute, write tables and charts into a folder, and hand the table back; `ffalm.theory.slips`
holds the places where the proof goes wrong, each with a computation that shows it. `docs/theory.md` tells the story.
"""

from __future__ import annotations

from pathlib import Path

from ffalm.theory.findings import Findings


def example(folder: Path) -> Findings:
    """The two-client example of the paper's appendix, claim by claim, with its runs of a million rounds."""
    from ffalm.theory.paper_example import findings

    return findings(folder)


def rate(folder: Path) -> Findings:
    """The rate of convergence on a problem that meets the theorem's assumptions, at three levels of heterogeneity."""
    from ffalm.theory.measured_rate import findings

    return findings(folder)


__all__ = ["Findings", "example", "rate"]
