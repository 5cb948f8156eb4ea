"""How the processes of a federation are operated: log files ([logs]) and metrics ([metrics])."""

from __future__ import annotations

from dataclasses import dataclass

from ffalm.errors import require


@dataclass(frozen=True)
class Logs:
    """Size-bounded log files: FILE.log, and before it FILE.log.1 (the newest) to FILE.log.N."""

    max_megabytes: float = 20.0  # a log file that is larger is rotated; 0: never
    keep: int = 5  # rotated files that are kept

    def __post_init__(self) -> None:
        require(self.max_megabytes >= 0, f"The setting 'max_megabytes' must be 0 or more; got {self.max_megabytes}.")
        require(0 <= self.keep <= 999, f"The setting 'keep' of [logs] must be between 0 and 999; got {self.keep}.")

    @property
    def most_bytes(self) -> int:
        """The size above which a file is rotated."""
        return int(self.max_megabytes * 2**20)


@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics of the coordinator, on the loopback interface only."""

    port: int = 0  # 0: off

    def __post_init__(self) -> None:
        require(
            0 <= self.port < 65536, f"The setting 'port' of [metrics] must be between 0 and 65535; got {self.port}."
        )
