"""Alerts that were found, their acknowledgements and silences, in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.wire.scalars import Position, Text, Wire

AlertState = Literal["open", "suppressed", "retracted", "acknowledged"]
MOST_ACKNOWLEDGED = 1000
"""Alerts that one call acknowledges."""
LONGEST_SILENCE = 365 * 86400
MOST_SILENCES = 1000
"""That hold at once in an organization: each alert that is found is compared with them."""
MOST_SHOWN = 100
"""Alerts that a test shows; it counts all."""


class AlertQuery(Wire, frozen=True):
    dag: str | None = None
    alert: str | None = None
    state: AlertState | None = None
    after: UUID | None = None
    """The `after` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class AlertView(Wire, frozen=True):
    """Something that an alert found."""

    alert_id: UUID
    dag: str
    """Empty for the platform's own alerts."""
    alert: str
    state: AlertState
    severity: str
    title: str
    found_at: datetime
    event_time: datetime | None = None
    """Unset if it is personal data that the caller may not see."""
    dataset: str | None = None
    """What it is about."""
    subject: JsonObject = {}
    fields: JsonObject = {}
    position: str | None = None
    """As scopes are written."""
    suppressed: str | None = None
    """Why it was not sent; unset if it was given to its channels."""
    owner: str = ""
    channels: list[str] = []
    """Readers do not see them."""
    retracted_at: datetime | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    hides_personal_data: bool = False
    """Whether values were replaced by `***`, since the caller may not see them."""


class AlertsResponse(Wire, frozen=True):
    alerts: list[AlertView]
    after: UUID | None = None
    """Set if there may be more: the `after` of the next page."""


class AlertMessageView(Wire, frozen=True):
    """A message about an alert."""

    delivery_id: UUID
    channel: str
    """`***` for readers."""
    kind: Literal["alert", "acknowledgement", "retraction"]
    state: Literal["waiting", "delivered", "dead", "withdrawn"]
    tries: int
    created_at: datetime
    ended_at: datetime | None = None
    code: str | None = None
    """Why it was not delivered the last time, or at all."""
    reason: str | None = None
    """With the beginning of the receiver's answer; `***` for those who may not see what the message says."""


class AlertDetail(Wire, frozen=True):
    alert: AlertView
    deliveries: list[AlertMessageView]
    """Oldest first."""
    text: str = ""
    occurrence: int = 1
    """How often it was found; it counts again after it was retracted."""


class AlertSummaryQuery(Wire, frozen=True):
    dag: str | None = None
    alert: str | None = None


class AlertSummary(Wire, frozen=True):
    dag: str
    alert: str
    found: int
    sent: int
    """Given to channels."""
    retracted: int
    open: int
    """Sent, not retracted and not acknowledged."""
    last_found_at: datetime
    suppressed: dict[str, int] = {}
    """Not sent, by reason."""


class AlertSummaryResponse(Wire, frozen=True):
    alerts: list[AlertSummary]


class AlertSelection(Wire, frozen=True):
    """Alerts by their ids, or all open ones of an alert."""

    alert_ids: Annotated[list[UUID], msgspec.Meta(max_length=MOST_ACKNOWLEDGED)] = []
    dag: Text | None = None
    alert: Text | None = None

    def __post_init__(self) -> None:
        if bool(self.alert_ids) == (self.alert is not None):
            raise ValueError("give alert_ids or an alert")
        if self.alert is None and self.dag is not None:
            raise ValueError("a dag is given with an alert")


class AlertsAcknowledged(Wire, frozen=True):
    acknowledged: list[UUID]
    unchanged: dict[str, Literal["acknowledged", "retracted", "unknown"]] = {}
    """Those that were given by their ids and did not change, with the reason."""
    more: bool = False
    """There may be others: repeat the call."""


SubjectValue = Annotated[str, msgspec.Meta(max_length=1024)] | Position | bool | None
"""Numbers with a fraction are texts here, as in messages."""


class SilenceQuery(Wire, frozen=True):
    after: UUID | None = None
    """The `after` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class SilenceRequest(Wire, frozen=True):
    seconds: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_SILENCE)]
    reason: Text
    dag: Text | None = None
    alert: Text | None = None
    subject: Annotated[dict[str, SubjectValue], msgspec.Meta(max_length=20)] = {}
    """Values that the subjects of silenced alerts have; empty: any."""


class SilenceView(Wire, frozen=True):
    silence_id: UUID
    ends_at: datetime
    reason: str
    created_at: datetime
    created_by: str
    dag: str | None = None
    """Unset: of every DAG."""
    alert: str | None = None
    """Unset: every alert."""
    subject: JsonObject = {}


class SilencesResponse(Wire, frozen=True):
    silences: list[SilenceView]
    after: UUID | None = None
    """Set if there are more: the `after` of the next page."""


class AlertTestRequest(Wire, frozen=True):
    alert: Text
    start: Text | Position
    """A position or a partition of the dataset."""
    end: Text | Position
    dag: Text | None = None
    """Whose deployed definition is tested."""
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1_048_576)] | None = None
    """The contents of a DAG file, whose definition is tested instead."""
    file: Text = "dag.yaml"
    """Its name, for error messages."""

    def __post_init__(self) -> None:
        if (self.dag is None) == (self.text is None):
            raise ValueError("give a dag, or the text of a DAG file")


class AlertTested(Wire, frozen=True):
    title: str
    position: str
    subject: JsonObject = {}
    fields: JsonObject = {}
    event_time: datetime | None = None
    suppressed: str | None = None
    """Why it would not have been sent; unset if it would."""


class AlertTestResponse(Wire, frozen=True):
    found: int
    alerts: list[AlertTested]
    """The first hundred, by event time."""
    suppressed: dict[str, int] = {}
    """Of all that were found: those that would not have been sent, by reason."""
    and_more: bool = False
    """There are more than 10 000: a task that finds as many fails."""
