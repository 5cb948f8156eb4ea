"""The page that a site's administrator finds in the folder handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ffalm.errors import UserError

if TYPE_CHECKING:
    from ffalm.federate.federation_config import FederationConfig, SharedData, SiteConfig


def page(config: FederationConfig, site: SiteConfig) -> str:
    """What to do, what is sent, what is not, and what to do when it does not work; in Markdown, on one page."""
    host, _, port = config.address.rpartition(":")
    return f"""# {site.name}: how to take part in {config.name}
You train a classifier together with {len(config.sites) - 1} other site(s). Your rows stay on your machine.

1. Install Python 3.11 or newer and `pip install 'ffalm[flower]'`, the version that the coordinator has.
2. Put this folder on the machine that holds your data. `node.key` is your site's identity: keep it to yourself.
   To be sure that nobody else has ever had it, make your own with
   `ssh-keygen -t ecdsa -b 384 -N "" -f node && mv node node.key`, and send `node.pub` to the coordinator and, for
   secure aggregation, directly to the other sites, which keep it as `peers/{site.name}.pub`.
3. Say in `site.toml` where your data is:
{_data(config, site)}
4. Allow outgoing connections to {host}, TCP port {port}. Nothing needs to reach you.
5. Run `ffalm federate site .` in this folder, and leave it running. It reconnects by itself; Ctrl-C ends it.
   With `--detach` it goes on in the background; `ffalm federate status .` says whether it runs, and
   `ffalm federate stop .` ends it.

## What leaves this machine
- Once: the names of your columns (not those in `drop`); for the columns that the federation uses, how many rows, their
  sum and sum of squares, and the categories that enough rows hold ({config.rules.min_group}, and at least 2; set
  `min_group` in `site.toml` to ask for more); how many training rows there are, and how many rows of each label and
  group.
- Each round: the model's weights after training here, the duals after this site's own step or, if the algorithm
  compares sites, counts and sums of losses of training rows per label and group; the mean loss; counts and sums of
  losses of held-out rows per label and group. Of labels and groups together that have fewer than
  {config.rules.min_group} rows nothing is told.
{_histograms(config)}- All of it encrypted, to the holder of the certificate that `ca.crt` vouches for.

## What does not
Rows, cells, file names, keys. Weights and sums are no rows, but they are not nothing either: whoever has them can learn
something about the people behind them. To be seen only in sums with the others', set `secure = true` in `site.toml`:
then nothing is sent unless the federation masks it. This site runs its own installation's code, never code that the
coordinator sends; but the coordinator says what is computed.

## If it does not work
- `ffalm federate doctor .` checks versions, keys, clock, network, permissions, disk and data, and says what to do.
- "cannot reach the coordinator": the sentence says what is in the way; try again when the coordinator is running.
- "it is not registered": send your `node.pub` to the coordinator, who restarts with it in `sites/{site.name}/`; or a
  copy of this folder is connected already: end it there with `ffalm federate stop`.
- "has no certificate of this federation": your `ca.crt` is not the coordinator's; ask for it again.
- Why a file does not fit is in `supernode.log`; the coordinator is told without the file's name, rows or values.
"""


def _group(shared: SharedData) -> str:
    """The columns of the group; a row may lack it."""
    columns = ", ".join(f"`{name}`" for name in shared.group_columns)
    return f"the group{'s' * shared.crossed} {columns} (an empty cell: not known)"


def _histograms(config: FederationConfig) -> str:
    """What a fairness target adds to what is sent."""
    if config.target is None:
        return ""
    return (
        f"- At the end, for the fairness target {config.target}: how many training and held-out rows of each label\n"
        "  and group get which score of the final model (in steps of 1/16 of a logit), without cells of too few\n"
        "  rows.\n"
        "  Set `histograms = false` in `site.toml` to send none.\n"
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
