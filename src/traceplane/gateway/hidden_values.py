"""What operators wrote about tasks, as far as the caller may see what they were handed."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from traceplane.auth.access import may_see_config, may_see_parameters
from traceplane.auth.callers import Caller
from traceplane.model.hidden_values import HiddenValues
from traceplane.postgres import task_views
from traceplane.postgres.database import Transaction


async def hidden_from(tx: Transaction, caller: Caller, task_ids: Sequence[UUID]) -> dict[UUID, HiddenValues]:
    """The values to leave out, for those of the tasks that were handed any."""
    if may_see_config(caller) or not task_ids:
        return {}
    hidden: dict[UUID, HiddenValues] = {}
    for row in await task_views.handed_values(tx, caller.org, task_ids):
        handed = [row.config] if may_see_parameters(caller) else [row.config, row.parameters]
        hidden |= dict.fromkeys(row.task_ids, HiddenValues(handed))
    return hidden
