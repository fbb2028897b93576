"""Fresh statistics for the planner.

Plans are cached per connection, and those made while a table was empty prefer whichever index looked
smallest then. ANALYZE discards them; autovacuum would do it too, but only after a minute or more.
"""

from __future__ import annotations

from traceplane.postgres.database import Transaction, statements

_SQL = statements("table_statistics")


async def refresh(tx: Transaction) -> int:
    if not await tx.value(_SQL["turn"]):
        return 0
    tables = [r["relname"] for r in await tx.rows(_SQL["stale"])]
    # Coarse statistics are enough for index probes, and need a tenth of the pages.
    await tx.run("set local default_statistics_target = 10")
    for table in tables:
        await tx.run(f'analyze "{table}"')
    return len(tables)
