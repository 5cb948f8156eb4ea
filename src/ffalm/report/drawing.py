"""Drawing the charts: pictures for files, specifications and the library that draws them for the page.

Only `curves`, which is imported here when it is needed, and this module need altair and vl-convert: hosts that only
train do not have them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from ffalm.outcome import StudyOutcome
from ffalm.system.files import cache_folder, write_whole

#: Okabe and Ito's colours, told apart with any colour vision; yellow and black are left out because they
#: vanish on a light or a dark page.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
#: Colours and sizes on paper; the page puts its own colours over these.
PAPER = {
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "#888888",
        "tickColor": "#888888",
        "gridColor": "#e6e6e6",
        "titleFontWeight": "normal",
    },
    "title": {"anchor": "start", "fontSize": 14, "offset": 12},
    "legend": {"labelFontSize": 12, "symbolOpacity": 1, "symbolSize": 250},
}


@dataclass(frozen=True)
class Drawing:
    """One chart of the page: as SVG for readers without scripts, and as data for an interactive one."""

    name: str
    svg: str
    specification: str  # JSON that is safe inside a script element


@dataclass(frozen=True)
class Drawings:
    """All that was drawn; no pictures where no run has a history."""

    png: bytes | None
    pdf: bytes | None
    charts: list[Drawing]
    library: str  # Vega, Vega-Lite and Vega-Embed in one script, empty where there is no chart


def draw(study: StudyOutcome) -> Drawings:
    """Draw everything; raises ImportError where altair or vl-convert is absent."""
    import vl_convert

    from ffalm.report.curves import TITLES, interactive, specifications, stacked

    charts = specifications(study)
    if not charts:
        return Drawings(None, None, [], "")
    paper = pictures(stacked({TITLES[name]: chart for name, chart in charts.items()}))
    return Drawings(
        png=paper["png"],
        pdf=paper["pdf"],
        charts=[
            Drawing(name, str(vl_convert.vegalite_to_svg(chart)), _json(interactive(chart)))
            for name, chart in charts.items()
        ],
        library=_library(),
    )


@cache
def _library() -> str:
    """Bundling takes vl-convert two seconds and always gives the same script, so it is kept in the cache folder."""
    import vl_convert

    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    with suppress(OSError):
        write_whole(kept, script)
    return script


def memory_is_limited() -> bool:
    """Whether `ulimit -v` is set: vl-convert's engine reserves so much that it may end the whole process then."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def draw_apart(study: StudyOutcome) -> Drawings:
    """Draw in a process of its own; raises MemoryError where that process dies."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=_silence) as pool:
            return pool.submit(draw, study).result()
    except BrokenProcessPool:
        raise MemoryError from None


def _silence() -> None:
    """A process that dies in foreign code writes pages of addresses."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def pictures(chart: dict[str, Any]) -> dict[str, bytes]:
    """A Vega-Lite chart as PNG and PDF, by file ending and by way of one SVG; raises ImportError without vl-convert."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart)
    return {"png": bytes(vl_convert.svg_to_png(svg, scale=2)), "pdf": bytes(vl_convert.svg_to_pdf(svg))}


def _json(value: dict[str, Any]) -> str:
    """JSON in which no text of the user's can close the script element that holds it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
