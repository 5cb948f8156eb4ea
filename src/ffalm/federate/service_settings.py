"""How the processes of a federation are operated: log files ([logs]) and metrics ([metrics])."""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.settings import setting


@dataclass(frozen=True)
class Logs:
    """Size-bounded log files: FILE.log, and before it FILE.log.1 (the newest) to FILE.log.N."""

    max_megabytes: float = setting(20.0, "Size above which a log file is rotated; 0: never.", least=0)
    keep: int = setting(5, "Rotated files that are kept.", least=0, most=999)

    @property
    def most_bytes(self) -> int:
        """The size above which a file is rotated."""
        return int(self.max_megabytes * 2**20)


@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics of the coordinator, on the loopback interface only."""

    port: int = setting(0, "Port of the metrics; 0: off.", least=0, most=65535)
