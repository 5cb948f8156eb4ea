"""The paper's theory tested numerically: its example, its rate and its proof.

`example` and `rate` compute, write tables and charts into a folder, and return the table; `ffalm.theory.errata` has the
places where the proof goes wrong, each with a computation that shows it. `docs/theory.md` explains them.
"""

from __future__ import annotations

from pathlib import Path

from ffalm.report.artifact import Artifact


def example(folder: Path) -> Artifact:
    """The two-client example of the paper's appendix, claim by claim, with its runs of a million rounds."""
    from ffalm.theory.paper_example import write_example

    return write_example(folder)


def rate(folder: Path) -> Artifact:
    """The rate of convergence on a problem that meets the theorem's assumptions, at three levels of heterogeneity."""
    from ffalm.theory.measured_rate import write_rate

    return write_rate(folder)


__all__ = ["example", "rate"]
