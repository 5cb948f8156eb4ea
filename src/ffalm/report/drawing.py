"""Charts as PNG and PDF, by vl-convert: hosts that only train do not have it."""

from __future__ import annotations

from typing import Any

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


def pictures(chart: dict[str, Any] | str) -> dict[str, bytes]:
    """A chart, in Vega-Lite or as SVG, as PNG and PDF by file ending; raises ImportError without vl-convert.

    Vega-Lite starts a JavaScript engine, which takes a second and reserves gigabytes of addresses; SVG does not.
    """
    import vl_convert

    svg = chart if isinstance(chart, str) else vl_convert.vegalite_to_svg(chart)
    return {"png": bytes(vl_convert.svg_to_png(svg, scale=2)), "pdf": bytes(vl_convert.svg_to_pdf(svg))}
