"""The next step of a task's error: the words of the errors page, and a retry only where one can help."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_docs import page, rows
from traceplane.model.advice import STEPS, advice

ID = "0199"
RETRY = f"`traceplane retry {ID}`"


@pytest.mark.parametrize("code", STEPS)
def test_every_step_is_that_of_the_errors_page(code: str) -> None:
    cell = rows(page("reference/errors.md"))[code][-1]
    cell = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell)
    assert STEPS[code][1] == re.sub(r"^none: [^;]*(; )?", "", cell)


def test_every_error_of_attempts_has_a_step() -> None:
    documented = rows(page("reference/errors.md"))
    attempts = {c for c in documented if c.startswith(("commit.", "compact.", "operator.", "invoke."))}
    assert attempts <= set(STEPS)


@pytest.mark.parametrize("deployed", [True, False])
def test_code_that_came_with_the_deploy_is_mended_by_a_deploy(deployed: bool) -> None:
    told = advice("operator.raised", task_id=ID, code_deployed=deployed)
    assert told.next_step.startswith("Correct the code. ")
    assert told.retry_helps is not deployed
    assert (RETRY in told.next_step) is not deployed


def test_an_operator_that_met_the_sandbox_is_told_so() -> None:
    for raised, word in (("FileNotFoundError", "code folder"), ("gaierror", "`network: true`")):
        told = advice("operator.raised", task_id=ID, raised=raised, code_deployed=True)
        assert word in told.next_step
        assert "Deploy the correction" in told.next_step
    assert "network" not in advice("operator.raised", task_id=ID, raised="ValueError").next_step


def test_an_operator_that_was_out_of_memory_is_told_of_the_limit() -> None:
    for code_deployed in (False, True):
        told = advice("operator.raised", task_id=ID, raised="MemoryError", code_deployed=code_deployed)
        assert "`memory_mb`" in told.next_step
        assert RETRY in told.next_step
        assert told.retry_helps


def test_a_retry_is_suggested_only_where_it_can_help() -> None:
    assert RETRY in advice("lease.expired", task_id=ID).next_step
    assert RETRY in advice("object_store.refused", task_id=ID, code_deployed=True).next_step
    for never in ("operator.misconfigured", "commit.scope_overlaps", "operator.timeout"):
        told = advice(never, task_id=ID)
        assert RETRY not in told.next_step
        assert not told.retry_helps
    for standing in ("superseded", "retired", "acknowledged"):
        assert not advice("lease.expired", task_id=ID, standing=standing).retry_helps
    assert RETRY not in advice("lease.expired", task_id=ID, of_pipeline=True).next_step


def test_what_the_error_says_itself_comes_first() -> None:
    told = advice("commit.not_as_declared", task_id=ID, step="declare column x", code_deployed=True)
    assert told.next_step.startswith("Declare column x. ")
