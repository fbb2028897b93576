"""`traceplane trigger doctor`."""

from __future__ import annotations

import asyncio

import click

from traceplane.cli.output import say, say_json
from traceplane.cli.services import with_database
from traceplane.cli.trigger import trigger
from traceplane.settings import Settings, with_unprefixed

_MARKS = {"ok": "ok     ", "warning": "look at", "problem": "PROBLEM"}


@trigger.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def doctor(settings: Settings, as_json: bool) -> None:
    """Say why pipelines are not triggered; exit code 1 if there is a problem."""
    from traceplane.postgres.database import Database
    from traceplane.trigger import doctor as examination

    chosen = with_database(with_unprefixed(settings))

    async def examine() -> list[examination.Finding]:
        assert chosen.state_url is not None
        database = await Database.connect(chosen.state_url, connections=1)
        try:
            return await examination.examine(chosen, database)
        finally:
            await database.close()

    findings = asyncio.run(examine())
    if as_json:
        say_json(findings)
    else:
        for finding in findings:
            say(f"{_MARKS[finding.level]}  {finding.sentence}")
            if finding.next_step is not None:
                say(f"         → {finding.next_step}")
    if any(finding.level == "problem" for finding in findings):
        raise SystemExit(1)
