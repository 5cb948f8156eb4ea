"""Nodes that are none of a federation's sites."""

from __future__ import annotations

from ffalm.federate.federation_config import FederationConfig


def stranger(config: FederationConfig, site: str, owner: str | None) -> str:
    """Why a node that introduces itself as this site is none of the sites; empty if it is one.

    `owner` is the site whose key the node has; None if that is not known.
    """
    if site not in config.sites:
        return (
            f"A node introduces itself as the site {site!r}, which federation.toml does not list: it is left out. "
            "If it was added since this training was started, stop the training and run it again."
        )
    if site in config.removed:
        return f"The site {site!r} was removed from the federation: it is left out."
    if owner not in (None, site):
        return f"A node introduces itself as the site {site!r}, but has the key of {owner!r}: it is left out."
    return ""
