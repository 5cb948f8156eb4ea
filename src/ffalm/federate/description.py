"""What a site says of its file before anything is agreed: names, counts and sums, never a row."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ffalm.data.encoding import NumericSummary, TableSummary
from ffalm.errors import UserError


@dataclass(frozen=True)
class Description:
    """A site's values of label and group in natural order, and its feature columns or the size of its images."""

    source: str
    labels: tuple[str, ...]
    groups: tuple[str, ...]
    columns: TableSummary | None = None
    size: int | None = None

    def to_json(self) -> str:
        """As text for the wire."""
        columns = None if self.columns is None else self.columns.to_json()
        return json.dumps(
            {"source": self.source, "labels": self.labels, "groups": self.groups, "columns": columns, "size": self.size}
        )

    @classmethod
    def from_json(cls, text: str) -> Description:
        """The description that `to_json` wrote; one that makes no sense is refused, since sites run other versions."""
        try:
            values = json.loads(text)
            columns = None if values["columns"] is None else _checked(TableSummary.from_json(values["columns"]))
            labels, groups = (tuple(str(value) for value in values[name]) for name in ("labels", "groups"))
            return cls(str(values["source"]), labels, groups, columns, values["size"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"The site's description of its file cannot be read ({error}).") from None


def _checked(summary: TableSummary) -> TableSummary:
    """The summary, if its sums are numbers and its categories names; `ValueError` where they are not."""
    for name, column in summary.columns.items():
        if isinstance(column, NumericSummary):
            right = all(isinstance(value, int | float) for value in (column.count, column.total, column.squares))
        else:
            named = all(category is None or isinstance(category, str) for category in column.counts)
            right = named and all(isinstance(count, int) for count in column.counts.values())
        if not right:
            raise ValueError(f"the column {name!r} makes no sense")
    return summary
