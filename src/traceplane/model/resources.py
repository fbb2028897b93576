"""What a worker has for each of its tasks, and what a job needs of the worker that runs its tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MEMORY = re.compile(r"([0-9]{1,6})([mgt])", re.ASCII)
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
LABEL_RULE = "a label: a-z, 0-9, then also . _ or -, up to 63 characters in all"
MEMORY_FORM = "write a whole number with a unit: 512m, 8g or 1t"


class BadResources(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Resources:
    memory: int = 0
    """In bytes."""
    gpu: int = 0
    labels: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != _NOTHING

    def lacks(self, needed: Resources) -> Resources:
        """The part of what is needed that is not here."""
        return Resources(
            needed.memory if needed.memory > self.memory else 0,
            needed.gpu if needed.gpu > self.gpu else 0,
            tuple(label for label in needed.labels if label not in self.labels),
        )

    def in_words(self) -> str:
        """As it is written: `memory=8g, gpu=1, label=eu`."""
        words = [f"memory={_written(self.memory)}"] if self.memory else []
        words += [f"gpu={self.gpu}"] if self.gpu else []
        return ", ".join([*words, *(f"label={label}" for label in self.labels)]) or "nothing"


_NOTHING = Resources()


def parsed_memory(text: str) -> int:
    """Raises `BadResources`."""
    if (match := _MEMORY.fullmatch(text)) is None or not int(match[1]):
        raise BadResources(f"{text[:100]!r} is not an amount of memory")
    return int(match[1]) * _UNITS[match[2]]


def is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Each once, so that equal needs have one wake queue."""
    return tuple(sorted(set(labels)))


def parsed(offers: Iterable[str]) -> Resources:
    """From `memory=16g`, `gpu=1` and `label=eu`, which may be repeated. Raises `BadResources`."""
    memory, gpu, labels = 0, 0, []
    for offer in offers:
        name, _, value = offer.strip().partition("=")
        if name == "memory":
            memory = parsed_memory(value)
        elif name == "gpu" and value.isascii() and value.isdigit() and len(value) <= 4:
            gpu = int(value)
        elif name == "label" and is_label(value):
            labels.append(value)
        else:
            raise BadResources(f"{offer[:100]!r} is none of memory=…, gpu=… and label=…")
    return Resources(memory, gpu, sorted_labels(labels))


def _written(size: int) -> str:
    unit = next(unit for unit in ("t", "g", "m") if size % _UNITS[unit] == 0 or unit == "m")
    return f"{size // _UNITS[unit]}{unit}"
