"""What a job asks of Spark: executors and their size, memory of the driver, partitions of shuffles.

All but the partitions of shuffles is settled when a Spark server starts, so a job that asks for it has servers of its
own, with exactly that. Other jobs share theirs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

LEAST_MEMORY = 512 << 20
"""Spark refuses executors with less."""
MOST_EXECUTORS = 10_000
MOST_CORES = 256
MOST_PARTITIONS = 100_000


@dataclass(frozen=True, slots=True)
class SparkResources:
    executors: int | None = None
    """How many there are; with `max_executors`, how many there are at first."""
    max_executors: int | None = None
    """Up to which Spark adds executors while tasks wait for one, and takes away idle ones."""
    executor_cores: int | None = None
    executor_memory: int | None = None
    """In bytes, like all memory here: the heap of an executor."""
    executor_memory_overhead: int | None = None
    """What an executor needs beside its heap: Python, and files that are being written."""
    driver_memory: int | None = None
    """The heap of the job's Spark server."""
    shuffle_partitions: int | None = None

    def __bool__(self) -> bool:
        return self != _NOTHING

    def given(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def on_cluster(self) -> list[str]:
        """The names of those that only a cluster has."""
        return [name for name in self.given() if name not in ("driver_memory", "shuffle_partitions")]

    @property
    def of_server(self) -> SparkResources:
        """Without what a session can have for itself."""
        return SparkResources(
            self.executors,
            self.max_executors,
            self.executor_cores,
            self.executor_memory,
            self.executor_memory_overhead,
            self.driver_memory,
        )

    def properties(self) -> dict[str, str]:
        """Of a server, but the memory of its driver."""
        named: dict[str, int | None] = {
            "spark.executor.instances": self.executors,
            "spark.executor.cores": self.executor_cores,
        }
        sizes = {
            "spark.executor.memory": self.executor_memory,
            "spark.executor.memoryOverhead": self.executor_memory_overhead,
        }
        found = {name: str(value) for name, value in named.items() if value is not None}
        found |= {name: f"{size >> 20}m" for name, size in sizes.items() if size is not None}
        if self.executors is not None:
            # A standalone cluster knows no number of executors, only one of cores.
            found["spark.cores.max"] = str(
                max(self.executors, self.max_executors or 0) * (self.executor_cores or 1)
            )
            found.setdefault("spark.executor.cores", "1")
        if self.max_executors is not None:
            found |= {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.minExecutors": "0",
                "spark.dynamicAllocation.initialExecutors": str(self.executors or 1),
                "spark.dynamicAllocation.maxExecutors": str(self.max_executors),
            }
            found.pop("spark.executor.instances", None)
        return found


_NOTHING = SparkResources()
