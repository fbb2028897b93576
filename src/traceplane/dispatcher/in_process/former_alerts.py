"""Alerts that another version found by other periods: those of a day, say, for a version that knows months.

They are other alerts, as they have other positions. But they are about the same rows, if they have the same subject and
their periods overlap: what receivers were told of a day is no news when it is found in its month, and it is taken back
when the month no longer has it. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from traceplane.model.edges import overlapping
from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range, common
from traceplane.postgres.alerts import KnownAlert, of_periods


class FormerAlerts:
    def __init__(self, alerts: Iterable[KnownAlert], own: Partitions) -> None:
        """`own`: the periods of the version that asks."""
        self._own = own
        self._about: defaultdict[bytes, list[KnownAlert]] = defaultdict(list)
        for alert in alerts:
            self._about[_canonical(alert.subject)].append(alert)

    def __iter__(self) -> Iterator[KnownAlert]:
        return (alert for alerts in self._about.values() for alert in alerts)

    def here(self, alert: KnownAlert) -> Range:
        """Its position, in the periods of the version that asks."""
        assert alert.periods is not None
        return overlapping((alert.position, alert.position), of_periods(alert.periods), self._own)

    def is_released(self, subject: JsonObject, position: int) -> bool:
        """Whether one of them was to be sent and was not."""
        return any(alert.is_released for alert in self._at(subject, position))

    def was_known(self, subject: JsonObject, position: int) -> bool:
        """Whether a version that served had found one of them, and had sent it or not for its reasons."""
        return any(not alert.is_held and not alert.is_built for alert in self._at(subject, position))

    def concerned(self, positions: Sequence[Range]) -> list[KnownAlert]:
        """Those that new rows at these positions may have removed, and those that the version sends by itself."""
        return [
            alert
            for alert in self
            if alert.is_released
            or (not alert.is_built and not alert.is_held and common([self.here(alert)], positions))
        ]

    def _at(self, subject: JsonObject, position: int) -> Iterable[KnownAlert]:
        if not self._about:
            return ()
        about = self._about.get(_canonical(subject), ())
        return (alert for alert in about if common([self.here(alert)], [(position, position)]))


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")
