"""A DAG that copies `in` to `mid` and `mid` to `end`, and the steps that commit its scopes and read them back."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.control_plane import ControlPlane, Held, completed
from tests.dags import SOURCE, job
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ColumnSchema

COPY = SOURCE + job("copy", "in", "mid") + job("after", "mid", "end")
APPEND = COPY.replace(
    'config: {entrypoint: "basic:copy"}',
    'config: {entrypoint: "basic:copy"}\n  update_strategy: append\n  unique_key: [position]',
    1,
)


async def held_for(plane: ControlPlane, *scopes: int | Scope, **fields: Any) -> list[Held]:
    """The tasks of the job `copy` for new events of these scopes, in their order."""
    await plane.emit("in", scopes, **fields)
    await plane.meter()
    sent, mine = await plane.send(), set(await plane.tasks("copy"))
    plane.wake_ups.sent += [task_id for task_id in sent if task_id not in mine]
    return sorted(await plane.claim([i for i in sent if i in mine]), key=lambda h: h.task_id)


async def commit(plane: ControlPlane, *scopes: int | Scope, **fields: Any) -> None:
    await plane.complete(*await held_for(plane, *scopes, **fields))


async def readers(plane: ControlPlane) -> list[tuple[str, str, int]]:
    """(scope, kind, files) of the tasks of `after`, which are claimed and completed."""
    await plane.meter()
    held = sorted(await plane.claim(await plane.send()), key=lambda h: h.task_id)
    found = [
        (str(h.task.scope.partition_key or h.task.scope.cursor), h.task.kind, len(h.task.input_files[0]))
        for h in held
        if h.task.scope is not None
    ]
    await plane.complete(*held)
    return found


async def live(plane: ControlPlane, dataset: str = "mid") -> list[str]:
    rows = await plane.sql(
        "select c.scope_key from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
        " where d.dataset_id = $1 and superseded_by is null order by commit_id",
        dataset,
    )
    return [row["scope_key"] for row in rows]


def with_schema(held: Held, **columns: str) -> tuple[Held, Any]:
    """A report whose files have these columns; `a="int64!"` is never null."""
    listed = [ColumnSchema(n, t.removesuffix("!"), not t.endswith("!")) for n, t in columns.items()]
    outputs = [msgspec.structs.replace(o, schema=listed) for o in held.outputs()]
    return held, completed(held, outputs=outputs)


async def merged(plane: ControlPlane, dataset: str = "mid") -> dict[str, str]:
    columns = await plane.value(
        "select columns from generation_schemas join datasets on current_generation_id = generation_id"
        " where dataset_id = $1",
        dataset,
    )
    return {c["name"]: c["type"] + ("" if c["nullable"] else "!") for c in columns or ()}
