"""The page for a site's administrator in the folder that is handed over: `instructions.md`, filled in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.errors import UserError

if TYPE_CHECKING:
    from ffalm.federate.federation_config import FederationConfig, SharedData, SiteConfig


def page(config: FederationConfig, site: SiteConfig) -> str:
    """What to do, what is sent and what is not, and what to do about errors, in Markdown."""
    host, _, port = config.address.rpartition(":")
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return template.format(
        site=site.name,
        federation=config.name,
        others=len(config.sites) - 1,
        data=_data(config, site),
        host=host,
        port=port,
        min_group=config.rules.min_group,
        histograms=_histograms(config),
    )


def _group(shared: SharedData) -> str:
    """The columns of the group; a row may lack it."""
    columns = ", ".join(f"`{name}`" for name in shared.group_columns)
    return f"the group{'s' * shared.crossed} {columns} (an empty cell: not known)"


def _histograms(config: FederationConfig) -> str:
    """What is sent because of a fairness target."""
    if config.target is None:
        return ""
    blind = (
        "- For a rule without the group, also: in as many rounds, the weights and the mean loss of a second model,\n"
        "  which predicts the group; then, without cells of too few rows, for how many held-out rows of each label\n"
        "  and group it predicts their own group, and how many of them each of many rules predicts favourable.\n"
    )
    return (
        f"- At the end, for the fairness target {config.target}: how many training, held-out and test rows of each\n"
        "  label and group get which score of the final model (in steps of 1/16 of a logit), without cells of too few\n"
        "  rows.\n"
        "  Set `histograms = false` in `site.toml` to send none.\n"
        f"{blind if config.blind else ''}"
    )


def _data(config: FederationConfig, site: SiteConfig) -> str:
    """The lines of site.toml to edit, and what the data must hold."""
    shared = config.data
    what = "   every row has" if site.data.source == "table" else "   every image has a row with"
    values = f" ({', '.join(map(str, shared.label_values))})" if shared.label_values else ""
    groups = f" ({', '.join(map(str, shared.groups))})" if shared.groups else ""
    needs = f"{what} the label `{shared.label}`{values} and {_group(shared)}{groups}."
    if site.data.source == "table":
        return f'   `[data]` `file = "your.csv"` (or .tsv, .parquet; relative to this folder or absolute);\n{needs}'
    if site.data.source == "images":
        return f'   `[data]` `folder = "images"` and `labels = "labels.csv"`, whose rows name the files;\n{needs}'
    raise UserError(f"There are no instructions for data of the source {site.data.source!r}.")
