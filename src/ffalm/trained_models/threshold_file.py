"""`repair.json`: the thresholds of the answer to a fairness target, or its blind rule, beside the model it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffalm.studies import checksums
from ffalm.system.files import json_text

REPAIR = "repair.json"


def thresholds_text(plain: Mapping[str, Any]) -> str:
    """The content of the file, with a checksum of its own: the answer may be given after its run is finished."""
    return json_text(checksums.sealed(plain), 2) + "\n"
