from __future__ import annotations

from ffalm.report.markup import Markup, element, joined


def test_text_is_escaped_and_markup_is_kept() -> None:
    assert element("p", "a < b", Markup("<i>c</i>")) == "<p>a &lt; b<i>c</i></p>"
    assert joined("<", Markup("<")) == "&lt;<"


def test_attributes_are_escaped_renamed_and_left_out() -> None:
    made = element("td", class_='a"b', aria_label="<x>", colspan=2, hidden=True, id=None, open=False)
    assert made == '<td class="a&quot;b" aria-label="&lt;x&gt;" colspan="2" hidden></td>'
