"""Dead letters, completed attempts whose rows a sink could not write, are listed, explained, replayed and dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.control_plane import ControlPlane, Held
from tests.gateway_http import GatewayHttp
from tests.hot_worker import HotWorker
from tests.postgres.hot_history import DAG, pairs, span, table
from tests.postgres.test_lock_order import deadlocks
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.auth.callers import Caller
from traceplane.auth.roles import Role
from traceplane.cli.main import cli
from traceplane.dispatcher.loops.sinks import Written
from traceplane.errors import Forbidden, NotFound
from traceplane.http_service.routes import Call
from traceplane.registry.garbage import Policy, collect
from traceplane.wire.control import TaskChanges, TaskSelection
from traceplane.wire.dead_letters import DeadLetterDetail, DeadLetterQuery, DeadLetterView
from traceplane.wire.tasks import ClaimedTask

BUFFERED = DAG.replace("write_mode: direct, ", "")


class Letters:
    """A worker whose staged files can be taken away and come back, and people who see to the letters."""

    def __init__(self, worker: HotWorker) -> None:
        self.worker, self.plane = worker, worker.plane
        self.api = worker.plane.api.dead_letters

    async def dead(self, scope: int | Any, *rows: tuple[int, int], emission: str = "") -> Held:
        """A task whose rows would fit, but whose file cannot be read, however often it is tried."""
        await self.plane.emit("in", [scope], emission=emission)
        [held] = await self.worker.take("store")
        await self.die(held, *rows)
        return held

    async def die(self, held: Held, *rows: tuple[int, int]) -> None:
        done = self.worker.done(held, table(*rows))
        path = self.worker.objects / done.outputs[0].files[0].path
        hidden = path.rename(path.with_suffix(".hidden"))
        assert await self.plane.report((held, done)) == ["buffered"]
        await self.plane.sql("update buffered_reports set tries = 10 where task_id = $1", held.task_id)
        assert await self.plane.sink() == Written(dead=1)
        hidden.rename(path)

    async def listed(self, caller: Caller | None = None, **query: Any) -> list[DeadLetterView]:
        return (await self.api.listing(self.call(None, caller, DeadLetterQuery(**query)))).letters

    async def show(self, held: Held, caller: Caller | None = None) -> DeadLetterDetail:
        return await self.api.letter(self.call(None, caller, task_id=str(held.task_id)))

    async def replay(self, *held: Held, caller: Caller | None = None, **chosen: Any) -> TaskChanges:
        return await self.api.replay(self.call(TaskSelection([h.task_id for h in held], **chosen), caller))

    async def drop(self, *held: Held, caller: Caller | None = None, **chosen: Any) -> TaskChanges:
        return await self.api.drop(self.call(TaskSelection([h.task_id for h in held], **chosen), caller))

    def call(self, body: Any, caller: Caller | None, query: Any = None, **path_params: str) -> Call[Any]:
        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        return Call(body, path_params, query, caller or self.plane.admin, {}, receive=receive)

    async def state(self, held: Held) -> str:
        return str(await self.plane.value("select state from tasks where task_id = $1", held.task_id))

    async def rows(self) -> list[tuple[int, int]]:
        return pairs(await self.worker.table("hot"))


@pytest.fixture
async def letters(database_url: str, tmp_path: Path) -> AsyncIterator[Letters]:
    async with ControlPlane.open(database_url, home=tmp_path, connections=8) as plane:
        await plane.deploy(BUFFERED)
        yield Letters(HotWorker(plane, tmp_path / "objects"))
    assert await deadlocks(database_url) == 0


def why(changes: TaskChanges) -> list[str]:
    return list(changes.why_unchanged.values())


# Looking --------------------------------------------------------------------------------------------


async def test_letters_are_listed_oldest_first_and_page_by_page(letters: Letters) -> None:
    held = [await letters.dead(n, (n, 1)) for n in range(3)]
    assert [letter.task_id for letter in await letters.listed()] == [h.task_id for h in held]
    first = await letters.api.listing(letters.call(None, None, DeadLetterQuery(limit=2)))
    assert [letter.scope for letter in first.letters] == ["0", "1"]
    second = await letters.api.listing(letters.call(None, None, DeadLetterQuery(limit=2, after=first.after)))
    assert [letter.scope for letter in second.letters] == ["2"]
    assert second.after is None


async def test_letters_are_found_by_dag_job_and_dataset(letters: Letters) -> None:
    await letters.dead(1, (1, 1))
    assert await letters.listed(dag="main", job="store", dataset="hot")
    assert await letters.listed(dataset="cold") == []
    assert await letters.listed(job="reader") == []
    for field, name in (("dag", "mian"), ("job", "stor"), ("dataset", "hto")):
        with pytest.raises(NotFound) as refused:
            await letters.listed(None, **{field: name})
        assert refused.value.code == f"{field}.unknown"


async def test_a_letter_shows_what_was_refused_and_what_to_do(letters: Letters) -> None:
    await letters.plane.emit("in", [2])
    [held] = await letters.worker.take("store")
    await letters.worker.store(held, table((2, 1), (2, 2)), table((2, 3), (99, 4)))
    assert await letters.plane.sink() == Written(dead=1)
    detail = await letters.show(held)
    letter = detail.letter
    assert (letter.dag, letter.job, letter.dataset, letter.scope) == ("main", "store", "hot", "2")
    assert (letter.rows, letter.files, letter.attempt, letter.tries) == (4, 2, 1, 1)
    assert letter.bytes == sum(file.bytes for file in detail.files) > 0
    assert [file.rows for file in detail.files] == [2, 2]
    assert letter.error is not None
    assert letter.error["message"] == (
        "row 2 of part-1.parquet: column block has 99, which is outside the task's scope 2 to 2"
    )
    assert detail.row is not None
    assert (detail.row.row, detail.row.column, detail.row.value) == (2, "block", "99")
    assert detail.row.file == detail.files[1].path
    assert detail.row.expected == "a position of the task's scope 2 to 2"
    assert detail.why_not_replayed is None
    assert f"traceplane retry {held.task_id}" in detail.next_step
    reasons = {reason.code: reason.sentence for reason in (await letters.plane.explain(held.task_id)).reasons}
    assert f"traceplane dead-letter show {held.task_id}" in reasons["dead_letter"]


async def test_counts_that_no_number_holds_keep_nobody_from_listing_letters(letters: Letters) -> None:
    """Row counts are the operator's word."""
    await letters.dead(1, (1, 1))
    await letters.plane.sql(
        "update buffered_reports set report = jsonb_set(jsonb_set(report,"
        " '{outputs,0,row_count}', '18446744073709551614'), '{outputs,0,bytes}', '18446744073709551614')"
    )
    [letter] = await letters.listed()
    assert (letter.rows, letter.bytes) == (2**63 - 1, 2**63 - 1)


async def test_a_letter_that_may_pass_is_to_be_replayed(letters: Letters) -> None:
    held = await letters.dead(1, (1, 1))
    detail = await letters.show(held)
    assert detail.letter.tries == 11
    assert detail.row is None
    assert detail.next_step.endswith(
        f"Then `traceplane dead-letter replay {held.task_id}` writes the rows as they are."
    )


async def test_a_task_without_a_letter_is_unknown(letters: Letters) -> None:
    await letters.plane.emit("in", [1])
    [held] = await letters.worker.take("store")
    await letters.plane.fail(held, retryable=False)
    with pytest.raises(NotFound, match="no dead letter"):
        await letters.show(held)
    assert why(await letters.replay(held)) == why(await letters.drop(held)) == ["no_letter"]
    missing = replace(held, task=_with_id(held, uuid4()))
    assert why(await letters.replay(missing)) == ["unknown"]


def _with_id(held: Held, task_id: UUID) -> ClaimedTask:
    return msgspec.structs.replace(held.task, task_id=task_id)


async def test_status_counts_letters_by_dataset(letters: Letters) -> None:
    held = [await letters.dead(n, (n, 1)) for n in range(2)]
    counts = {d.dataset: d.dead_letters for d in (await letters.plane.status()).datasets}
    assert counts["hot"] == 2
    assert sum(counts.values()) == 2
    await letters.drop(held[0])
    assert {d.dataset: d.dead_letters for d in (await letters.plane.status()).datasets}["hot"] == 1


# Replay ---------------------------------------------------------------------------------------------


async def test_a_replayed_letter_is_written_as_if_it_had_just_been_handed_over(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    late = await _waiting(letters, 2)
    assert (await letters.replay(held)).changed == {str(held.task_id): "running"}
    assert await letters.state(held) == "running"
    assert await letters.listed() == []
    [reason] = (await letters.plane.explain(held.task_id)).reasons
    assert reason.sentence == "Attempt 1 is done; its rows wait for a sink, behind 1 others."
    await letters.plane.reaper.run_once()
    assert await letters.state(held) == "running"
    assert await letters.plane.sink() == Written(reports=2)
    assert await letters.rows() == [(1, 10), (2, 2)]
    assert await letters.state(held) == await letters.state(late) == "completed"
    assert await letters.plane.value("select count(*) from buffered_reports") == 0
    events = await letters.plane.sql(
        "select scope_key from events join datasets using (dataset_uuid) where dataset_id = 'hot' order by event_id"
    )
    assert [e["scope_key"] for e in events] == ["c:2", "c:1"]


async def _waiting(letters: Letters, n: int) -> Held:
    await letters.plane.emit("in", [n])
    [held] = await letters.worker.take("store")
    assert await letters.worker.store(held, table((n, n))) == "buffered"
    return held


async def test_replaying_twice_changes_nothing_more(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    await letters.replay(held)
    assert why(await letters.replay(held)) == ["running"]
    await letters.plane.sink()
    assert why(await letters.replay(held)) == ["completed"]
    assert await letters.rows() == [(1, 10)]


async def test_a_worker_that_says_again_that_it_is_done_changes_nothing(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    await letters.replay(held)
    assert await letters.worker.store(held, table((1, 10))) == "buffered"
    assert await letters.plane.sink() == Written(reports=1)
    assert await letters.rows() == [(1, 10)]
    assert await letters.plane.value("select count(*) from dataset_commits") == 1


async def test_a_replayed_letter_that_is_refused_again_is_a_letter_again(letters: Letters) -> None:
    await letters.plane.emit("in", [1])
    [held] = await letters.worker.take("store")
    await letters.worker.store(held, table((99, 1)))
    await letters.plane.sink()
    await letters.replay(held)
    assert await letters.plane.sink() == Written(dead=1)
    [letter] = await letters.listed()
    assert (letter.task_id, letter.attempt, letter.tries) == (held.task_id, 1, 1)
    assert await letters.rows() == []


async def test_a_replayed_task_can_be_canceled(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    await letters.replay(held)
    await letters.plane.cancel(held.task_id)
    await letters.plane.sink()
    assert await letters.state(held) == "canceled"
    assert await letters.rows() == []


async def test_a_newer_commit_of_the_scope_is_not_overwritten(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10), emission="a")
    await letters.plane.emit("in", [1], emission="b")
    [newer] = await letters.worker.take("store")
    assert why(await letters.replay(held)) == ["busy"]
    await letters.worker.store(newer, table((1, 20)))
    await letters.plane.sink()
    assert why(await letters.replay(held)) == ["superseded"]
    assert (await letters.show(held)).why_not_replayed == "superseded"
    assert await letters.rows() == [(1, 20)]


async def test_a_newer_commit_of_a_part_of_the_scope_is_not_overwritten(letters: Letters) -> None:
    held = await letters.dead(span(0, 9), *((n, 1) for n in range(10)))
    await letters.plane.emit("in", [5], emission="b")
    [newer] = await letters.worker.take("store")
    await letters.worker.store(newer, table((5, 20)))
    await letters.plane.sink()
    assert (await letters.listed())[0].standing == "open"
    assert why(await letters.replay(held)) == ["superseded"]
    assert await letters.rows() == [(5, 20)]


async def test_of_several_letters_of_a_scope_the_newest_is_replayed(letters: Letters) -> None:
    older = await letters.dead(1, (1, 10), emission="a")
    newer = await letters.dead(1, (1, 20), emission="b")
    changes = await letters.replay(older, newer)
    assert changes.changed == {str(newer.task_id): "running"}
    assert why(changes) == ["busy"]
    await letters.plane.sink()
    assert why(await letters.replay(older)) == ["superseded"]
    assert await letters.rows() == [(1, 20)]


async def test_an_older_letter_would_hide_a_newer_one(letters: Letters) -> None:
    older = await letters.dead(1, (1, 10), emission="a")
    newer = await letters.dead(1, (1, 20), emission="b")
    assert why(await letters.replay(older)) == ["not_newest"]
    await letters.drop(newer)
    assert (await letters.replay(older)).changed
    await letters.plane.sink()
    assert await letters.rows() == [(1, 10)]


async def test_a_letter_of_a_job_that_is_no_longer_deployed_is_not_replayed(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    await letters.plane.sql("update jobs set routed = false where name = 'store'")
    assert why(await letters.replay(held)) == ["retired"]
    assert [d.dead_letters for d in (await letters.plane.status()).datasets if d.dataset == "hot"] == [0]
    assert (await letters.drop(held)).changed == {str(held.task_id): "dropped"}


async def test_an_acknowledged_letter_is_not_replayed(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    await letters.plane.api.tasks.acknowledge(letters.call(TaskSelection([held.task_id]), None))
    assert why(await letters.replay(held)) == ["acknowledged"]


async def test_letters_of_a_dag_are_replayed_by_range(letters: Letters) -> None:
    held = [await letters.dead(n, (n, n)) for n in range(4)]
    changes = await letters.replay(dag="main", job="store", start=1, end=2)
    assert set(changes.changed) == {str(h.task_id) for h in held[1:3]}
    await letters.plane.sink()
    assert await letters.rows() == [(1, 1), (2, 2)]
    assert len((await letters.drop(dag="main")).changed) == 2
    assert await letters.listed() == []


async def test_more_letters_than_one_call_changes(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceplane.gateway.dead_letters.CHANGED_AT_ONCE", 2)
    monkeypatch.setattr("traceplane.gateway.tasks.CHANGED_AT_ONCE", 2)
    held = [await letters.dead(n, (n, n)) for n in range(3)]
    first = await letters.replay(dag="main")
    assert len(first.changed) == 2
    second = await letters.replay(dag="main", after=first.after)
    assert list(second.changed) == [str(held[2].task_id)]
    assert second.after is None


async def test_the_files_of_a_letter_are_kept_until_it_is_dropped_or_its_task_retried(
    letters: Letters,
) -> None:
    store, now = FolderObjectStore(letters.worker.objects), Policy(timedelta(0))
    replayed, dropped = [await letters.dead(n, (n, n)) for n in (1, 2)]
    await letters.plane.sql("update tasks set finished_at = tp_now() - interval '1 year'")
    assert (await collect(letters.plane.database, store, now)).files == 0
    await letters.drop(dropped)
    await letters.replay(replayed)
    assert (await collect(letters.plane.database, store, now)).files == 1
    await letters.plane.sink()
    assert await letters.rows() == [(1, 1)]


async def test_a_retried_task_has_no_letter(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    assert await letters.plane.retry(held.task_id)
    assert await letters.listed() == []
    assert await letters.plane.value("select count(*) from buffered_reports") == 0
    assert why(await letters.replay(held)) == why(await letters.drop(held)) == ["queued"]
    [again] = await letters.worker.take("store")
    await letters.plane.fail(again, retryable=False)
    assert why(await letters.replay(held)) == ["no_letter"]


# Drop -----------------------------------------------------------------------------------------------


async def test_a_dropped_letter_leaves_a_dead_task_that_needs_nobody(letters: Letters) -> None:
    held = await letters.dead(1, (1, 10))
    assert (await letters.drop(held)).changed == {str(held.task_id): "dropped"}
    assert await letters.listed() == []
    assert await letters.state(held) == "dead"
    assert (await letters.plane.status()).failed == []
    assert why(await letters.drop(held)) == ["no_letter"]
    assert await letters.plane.retry(held.task_id)


# Rights ---------------------------------------------------------------------------------------------


def person(letters: Letters, role: Role, *roles: str, **more: Any) -> Caller:
    return replace(
        letters.plane.admin,
        name=f"a {role}",
        role=role,
        roles=frozenset({str(role), *roles}),
        sees_pii=False,
        **more,
    )


async def test_letters_are_hidden_from_those_who_may_not_read_the_dataset(letters: Letters) -> None:
    rights = BUFFERED.replace("  hot: {", "  hot: {read_roles: [finance], write_roles: [finance], ")
    await letters.plane.deploy(rights)
    held = await letters.dead(1, (1, 10))
    stranger, member = person(letters, Role.WRITER), person(letters, Role.WRITER, "finance")
    assert await letters.listed(stranger) == []
    with pytest.raises(NotFound):
        await letters.show(held, stranger)
    for change in (letters.replay, letters.drop):
        assert why(await change(held, caller=stranger)) == ["unknown"]
    assert len(await letters.listed(member)) == 1
    assert (await letters.replay(held, caller=member)).changed


async def test_letters_are_changed_by_those_who_may_write_the_dataset(letters: Letters) -> None:
    await letters.plane.deploy(BUFFERED.replace("  hot: {", "  hot: {write_roles: [finance], "))
    held = await letters.dead(1, (1, 10))
    other = person(letters, Role.WRITER)
    assert len(await letters.listed(other)) == 1
    for change in (letters.replay, letters.drop):
        with pytest.raises(Forbidden):
            await change(held, caller=other)
        with pytest.raises(Forbidden):
            await change(caller=other, dag="main")
    assert len(await letters.listed()) == 1


async def test_a_refused_value_of_personal_data_is_shown_to_those_who_may_see_it(letters: Letters) -> None:
    await letters.plane.deploy(
        BUFFERED.replace("{name: name, type: string}", "{name: name, type: string, pii: true}")
    )
    await letters.plane.emit("in", [1])
    [held] = await letters.worker.take("store")
    rows = table((1, 1)).set_column(2, "name", pa.array(["ada@example.com\0"]))
    await letters.worker.store(held, rows)
    await letters.plane.sink()
    reader = person(letters, Role.READER)
    seen = await letters.show(held)
    assert seen.row is not None
    assert seen.row.value == "ada@example.com\\0"
    hidden = await letters.show(held, reader)
    assert hidden.row is None
    assert "ada@" not in repr(hidden), "ids may have an ada of their own"
    assert "ada@" not in repr(await letters.listed(reader))
    assert "ada@" not in repr(
        await letters.plane.api.tasks.explain(letters.call(None, reader, task_id=str(held.task_id)))
    )
    assert (await letters.show(held, replace(reader, sees_pii=True))).row == seen.row


# Races ----------------------------------------------------------------------------------------------


async def test_replay_races_with_retry_and_with_new_events_of_the_scope(letters: Letters) -> None:
    """Whatever comes first: no two tasks of a scope are under way, and the rows are those of the newest computation."""
    chance = random.Random(20261118)
    scopes = range(8)
    newest = dict.fromkeys(scopes, 0)
    tried = 0

    for round_ in range(12):
        letter = {}
        for n in scopes:
            newest[n] += 1
            letter[n] = await letters.dead(n, (n, newest[n]), emission=f"old{round_}")

        async def someone(step: Any, wait: float) -> Any:
            await asyncio.sleep(wait)
            return await step

        async def new_events(round_: int = round_) -> None:
            await letters.plane.emit("in", scopes, emission=f"new{round_}")
            await letters.plane.meter()

        held = list(letter.values())
        steps = [
            letters.replay(*held),
            letters.replay(*reversed(held)),
            letters.replay(dag="main"),
            letters.plane.retry(*(h.task_id for h in held[:4])),
            letters.plane.sink(),
            new_events(),
            letters.drop(*held[4:6]),
            letters.plane.emit("in", scopes[6:], emission=f"newer{round_}"),
        ]
        chance.shuffle(steps)
        done = await asyncio.gather(*(someone(step, chance.random() / 50) for step in steps))
        replayed = [
            t
            for answer in done
            if isinstance(answer, TaskChanges)
            for t, s in answer.changed.items()
            if s == "running"
        ]
        assert len(replayed) == len(set(replayed)), "a letter is replayed once"
        tried += len(replayed)
        doubled = await letters.plane.sql(
            "select scope_key from tasks where stage = 1 group by job_id, scope_key having count(*) > 1"
        )
        assert doubled == []
        # Everything comes to its end; each computation writes a larger number than those before it.
        for _ in range(10):
            await letters.plane.sink()
            computed = await letters.worker.take("store")
            for one in computed:
                n = one.scope.first
                newest[n] += 1
                assert await letters.worker.store(one, table((n, newest[n]))) == "buffered"
            if not computed and (await letters.plane.states("store")).keys() <= {"completed", "dead"}:
                break
        else:
            raise AssertionError(await letters.plane.states("store"))
        rows: dict[int, int] = dict(await letters.rows())
        assert rows == newest, "the newest computation of each scope is in the table"
        assert {letter.standing for letter in await letters.listed()} <= {"superseded"}
        await letters.drop(dag="main")
    assert tried


# The command line -----------------------------------------------------------------------------------


async def test_the_commands_say_what_is_there_and_what_to_do_next(
    letters: Letters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEPLANE_HOME", str(tmp_path / "home"))
    async with GatewayHttp.open(letters.plane) as http:
        monkeypatch.setenv("TRACEPLANE_GATEWAY_URL", f"http://127.0.0.1:{http.port}")
        monkeypatch.setenv("TRACEPLANE_USER_TOKEN", await http.token(Role.ADMIN))

        async def run(*words: str) -> tuple[int, str]:
            done = await asyncio.to_thread(CliRunner().invoke, cli, words)
            return done.exit_code, done.output

        assert await run("dlq", "list") == (0, "no dead letters\n")
        await letters.plane.emit("in", [2])
        [wrong] = await letters.worker.take("store")
        await letters.worker.store(wrong, table((99, 1)))
        await letters.plane.sink()
        unread = await letters.dead(1, (1, 10))
        _, text = await run("dlq", "list", "--dataset", "hot", "--limit", "1")
        line, more, step = text.splitlines()
        assert line.startswith(
            f"{wrong.task_id}  hot  main/store  2  1 row  commit.rows_unfit: row 1 of part-0."
        )
        assert more.startswith("there may be more: --after ")
        assert step == f"next: traceplane dead-letter show {wrong.task_id}"
        _, text = await run("dlq", "list", "--after", more.split()[-1])
        assert text.startswith(str(unread.task_id))
        _, text = await run("dlq", "show", str(wrong.task_id))
        assert "row 1, column block, value 99, expected a position of the task's scope 2 to 2\n" in text
        assert text.splitlines()[-1].startswith("Next step: Write only rows of the task's own scope.")
        assert '"value": "99"' in (await run("dlq", "show", str(wrong.task_id), "--json"))[1]
        assert (
            "dead letters:\n  hot: 2; traceplane dead-letter list --dataset hot\n" in (await run("status"))[1]
        )

        assert await run("dlq", "replay", str(unread.task_id)) == (0, f"{unread.task_id}  running\n")
        assert await run("dlq", "replay", str(unread.task_id)) == (
            1,
            f"{unread.task_id}  unchanged: it is running\n",
        )
        await letters.plane.sink()
        assert await run("dlq", "drop", "--dag", "main") == (0, "1 dropped\n")
        assert await run("dlq", "drop", "--dag", "main") == (1, "no dead letters\n")
        code, text = await run("dlq", "replay", "--dag", "main", "--json")
        assert (code, '"changed": {}' in text) == (1, True)
        assert "dead letters" not in (await run("status"))[1]
        audited = await letters.plane.sql(
            "select action, object, outcome, principal from audit_log"
            " where action like '%dead-letters%' order by audit_id"
        )
        assert [tuple(row) for row in audited] == [
            ("POST /api/v1/dead-letters/replay", {}, "ok", "default-admin"),
            ("POST /api/v1/dead-letters/drop", {"dag": "main"}, "ok", "default-admin"),
        ]
