"""Texts that are numbers, dates or durations: a column of them that is read as categories loses what it measures.

Texts that are surely numbers or dates are refused, since they can be corrected; others are only noted.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal, NamedTuple, get_args

FEWEST_IDS = 20  # with fewer distinct values a column is never taken for ids, dates or numbers

_FEWEST_NUMBERS = 4  # different ones beside a text: fewer are rather codes, such as 0, 1, 2, 3+

Decimal = Literal[".", ","]

_WHOLE = re.compile(r"[+-]?\d+")
_QUANTITY = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")  # no code such as 007
#: Numbers with thousands separators, a currency, a percent sign or a typeset minus: "$18,672", "18.671,76 €", "5 %".
_WRITTEN = re.compile(r"[+\-\u2212]?\s?[$€£¥]?\s?[+\-\u2212]?(\d{1,3}([.,'\s]\d{3})+|\d+)([.,]\d+)?\s?[%$€£¥]?")
_EXPONENT = re.compile(r"(?<=\d)[eE][+-]?\d{1,3}$")
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))([ T]\d.*)?")

_MONTH = r"[^\W\d]{3,9}\.?"
#: "01 Jan 2020", "1. März 2020", "Jan 1, 2020", "2020-01".
_NAMED_DATE = re.compile(
    rf"\d{{1,2}}\.?[ -]?{_MONTH}[ ,-]+\d{{2,4}}( .*)?|{_MONTH} \d{{1,2}},? \d{{4}}|\d{{4}}-\d{{2}}"
)
#: "13:45", "1:02:03.5", "5 days 00:00:00", "-1 days +23:59:00", "PT1H30M".
_DURATION = re.compile(
    r"[+-]?\d{1,3}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp]\.?[Mm]\.?)?"
    r"|-?\d+ days?,?( [+-]?\d+:\d{2}:\d{2}(\.\d+)?)?"
    r"|P(\d+[YMWD])*(T(\d+(\.\d+)?[HMS])+)?"
)
_NUMBER = r"[+-]?\d[\d.,'\s]*"
_BRACKETS = re.compile(rf"\([$€£¥]?\s?{_NUMBER}\)")
#: A number with a currency or a unit: "CHF 120", "Rs. 7", "45 min", "12kg".
_AMOUNT = re.compile(rf"([$€£¥₹]\s?|[A-Z]{{3}}\s?|[^\W\d]{{1,4}}\.?\s|){_NUMBER}([^\W\d]{{0,8}}[%$€£¥₹²³]?)")
_MOST_UNITS = 3  # of a column of amounts: more different texts around its numbers are codes


class Form(NamedTuple):
    """How a column's texts are written."""

    kind: str
    example: str
    remedy: str


def refused_form(values: list[str], decimal: Decimal = ".") -> Form | None:
    """What kind of numbers or dates were read as text, an example, and what to do; None for plain categories.

    `decimal` is the file's decimal mark. The other one, before exactly three digits each time, is taken for a thousands
    separator: as a decimal mark it would make 8.5 of 8,500.
    """
    other: Decimal = "," if decimal == "." else "."
    marked = [one for one in values if _other_mark(other).fullmatch(one)]
    plain = [one for one in values if _plain(decimal).fullmatch(one)]
    thousands = bool(marked) and all(_thousands(other).fullmatch(one) for one in marked)
    whole = all(_WHOLE.fullmatch(one) for one in plain)
    if marked and len(marked) + len(plain) == len(values):
        if thousands:
            return _separated(marked[0], other)
        if whole and (decimal == "." or len(values) > FEWEST_IDS):
            return _of_other_mark(marked[0], other)
    if len(values) <= FEWEST_IDS:
        return None
    dates = [one for one in values if _DATE.fullmatch(one)]
    if 10 * len(dates) >= 9 * len(values):
        return Form("dates", dates[0], "convert them to numbers, such as days or years, or list the column in drop")
    written = [one for one in values if _WRITTEN.fullmatch(one)]
    signs = [one for one in written if not _plain(decimal).fullmatch(one)]
    if not signs or 10 * len(written) < 9 * len(values):
        return None
    if len(signs) == len(marked) and whole and not thousands:
        return _of_other_mark(marked[0], other)
    remedy = f"write them as plain numbers, such as 1234{decimal}5, or list the column in categorical or drop"
    return Form("numbers with signs or thousands separators", signs[0], remedy)


def text_among_numbers(values: list[str]) -> str | None:
    """The first of a few texts in a column that otherwise holds numbers, such as "-"; None for plain categories."""
    texts = [one for one in values if not _QUANTITY.fullmatch(one.replace(",", "."))]
    return texts[0] if len(values) - len(texts) >= _FEWEST_NUMBERS and 0 < 4 * len(texts) <= len(values) else None


def decimal_mark(values: list[str]) -> tuple[str, Decimal] | None:
    """A text with a decimal mark, and the mark with which all texts are numbers; None if no mark surely is that."""
    values = [_EXPONENT.sub("", one) for one in values]
    for mark in get_args(Decimal):
        marked = [one for one in values if not _WHOLE.fullmatch(one)]
        clear = [one for one in marked if not _thousands(mark).fullmatch(one)]
        if clear and all(map(_other_mark(mark).fullmatch, marked)):
            return clear[0], mark
    return None


def noted_form(values: list[str]) -> Form | None:
    """What a column's many texts look like, though they may be codes; None for plain categories."""
    if len(values) <= FEWEST_IDS:
        return None
    if all(_QUANTITY.fullmatch(one) for one in values):  # in data frames and Parquet files alone
        return Form("numbers", values[0], "convert them to numbers, or list it in categorical if they are codes")
    for kind, shape in (("dates", _NAMED_DATE), ("times or durations", _DURATION)):
        alike = [one for one in values if shape.fullmatch(one)]
        if 10 * len(alike) >= 9 * len(values):
            return Form(kind, alike[0], "convert them to numbers, such as days or minutes, or list it in drop")
    remedy = "write plain numbers if they are quantities"
    brackets = [one for one in values if _BRACKETS.fullmatch(one)]
    numbers = [one for one in values if _WRITTEN.fullmatch(one)]
    if brackets and 10 * (len(brackets) + len(numbers)) >= 9 * len(values):
        return Form("numbers in brackets", brackets[0], remedy)
    amounts = {one: found for one in values if (found := _AMOUNT.fullmatch(one)) and any(found.groups())}
    units = Counter((found.group(1).strip(), found.group(2).strip()) for found in amounts.values())
    if 10 * sum(count for _, count in units.most_common(_MOST_UNITS)) >= 9 * len(values):
        return Form("numbers with a currency or a unit", next(iter(amounts)), remedy)
    return None


def _plain(decimal: Decimal) -> re.Pattern[str]:
    return re.compile(rf"[+-]?\d+({re.escape(decimal)}\d+)?")


def _other_mark(mark: Decimal) -> re.Pattern[str]:
    """A number with the mark that is not the file's decimal mark, or with several of it between thousands."""
    return re.compile(rf"[+-]?(\d+{re.escape(mark)}\d+|\d{{1,3}}({re.escape(mark)}\d{{3}})+)")


def _thousands(mark: Decimal) -> re.Pattern[str]:
    return re.compile(rf"[+-]?[1-9]\d{{0,2}}({re.escape(mark)}\d{{3}})+")


def _separated(example: str, mark: Decimal) -> Form:
    own, other = ("comma", "point") if mark == "," else ("point", "comma")
    thousands, decimals = example.replace(mark, ""), example.replace(mark, "." if mark == "," else ",")
    remedy = (
        f"write them without it ({thousands}), or with a decimal {other} ({decimals}) if that is meant; or list the "
        "column in categorical or drop"
    )
    return Form(f"numbers with a {own} before three digits, as thousands are written", example, remedy)


def _of_other_mark(example: str, mark: Decimal) -> Form:
    kind = f"numbers with a decimal {'comma' if mark == ',' else 'point'}"
    return Form(kind, example, f"set decimal to {mark!r}, or list the column in categorical or drop")
