"""Which alerts are silenced: those whose subjects have the values of a silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traceplane.model.json_object import JsonObject


class Silences:
    """Found by the columns that they name: a subject is looked up once for each set of columns, however many silences
    name it."""

    def __init__(self, subjects: Iterable[JsonObject]) -> None:
        """`subjects`: the values of each silence. One without any silences all."""
        self._values: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
        for subject in subjects:
            columns = tuple(sorted(subject))
            self._values.setdefault(columns, set()).add(tuple(subject[column] for column in columns))

    def hold(self, subject: Mapping[str, object]) -> bool:
        """Whether one of them silences an alert with this subject, whose values are as in messages."""
        return any(tuple(map(subject.get, columns)) in values for columns, values in self._values.items())
