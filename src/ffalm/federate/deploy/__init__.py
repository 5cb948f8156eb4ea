"""Running a federation on real machines: folders, keys, certificates, Flower's processes and their status."""

from __future__ import annotations

import os

from ffalm.errors import require
from ffalm.system.quiet import require_installed


def require_flower() -> None:
    """Refuse to go on without the extra 'flower', or where processes cannot be forked and signalled."""
    require(os.name == "posix", "`ffalm federate` needs Linux or macOS; on Windows use it within WSL, or a container.")
    require_installed("`ffalm federate`", "cryptography", "psutil")
