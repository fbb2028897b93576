"""The next step of a task's error: the words of the errors page, and a retry only where one can help."""

from __future__ import annotations

import re

import pytest

from tests.docs_pages import page, rows
from traceplane.model.advice import REMEDIES, Cause, Remedy, advice
from traceplane.operators import catalog

ID = "0199"
RETRY = f"`traceplane retry {ID}`"


def remedies() -> dict[str, Remedy]:
    """Those of the platform and of its operators."""
    specs = [spec for name in catalog.BUILT_IN if (spec := catalog.find(name)) is not None]
    own = {error.code: error.remedy for spec in specs for error in spec.errors}
    return REMEDIES | {code: remedy for code, remedy in own.items() if remedy is not None}


@pytest.mark.parametrize("code", remedies())
def test_every_next_step_matches_the_errors_page(code: str) -> None:
    cell = rows(page("reference/errors.md"))[code][-1]
    cell = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell)
    assert remedies()[code].step == re.sub(r"^none: [^;]*(; )?", "", cell)


def test_every_error_of_an_attempt_has_a_next_step() -> None:
    documented = rows(page("reference/errors.md"))
    attempts = {c for c in documented if c.startswith(("commit.", "compact.", "operator.", "invoke."))}
    assert attempts <= set(remedies())


def test_errors_of_one_operator_are_not_known_to_the_platform() -> None:
    specs = [spec for name in catalog.names() if (spec := catalog.find(name)) is not None]
    assert not REMEDIES.keys() & {error.code for spec in specs for error in spec.errors}
    told = advice(
        "quality.too_many", task_id=ID, own=Remedy(Cause.SURROUNDINGS, "ask the vendor"), code_deployed=True
    )
    assert told.next_step == f"Ask the vendor. Then {RETRY}."


def test_a_failed_query_is_corrected_where_it_was_written() -> None:
    query = "`config.query` of the job totals in its DAG file"
    told = advice("operator.raised", task_id=ID, raised="ArithmeticException", query=query)
    assert told.next_step == f"Correct {query}. Deploy the correction: a retry runs what is deployed."
    assert not told.retry_helps
    told = advice("operator.value_does_not_fit", task_id=ID, query=query)
    assert told.next_step.startswith(f"Correct {query}, or declare a wider type. Deploy")
    assert RETRY in advice("operator.spark_lost", task_id=ID, query=query).next_step


def test_a_crash_in_native_code_is_told_from_a_limit() -> None:
    told = advice("operator.crashed", task_id=ID)
    assert "library" in told.next_step
    assert "limits" not in told.next_step


@pytest.mark.parametrize("deployed", [True, False])
def test_code_sent_with_a_deploy_is_fixed_by_a_deploy(deployed: bool) -> None:
    told = advice("operator.raised", task_id=ID, code_deployed=deployed)
    assert told.next_step.startswith("Correct the code. ")
    assert told.retry_helps is not deployed
    assert (RETRY in told.next_step) is not deployed


def test_an_error_caused_by_the_sandbox_is_explained() -> None:
    for raised, word in (("FileNotFoundError", "code folder"), ("gaierror", "`network: true`")):
        told = advice("operator.raised", task_id=ID, raised=raised, code_deployed=True)
        assert word in told.next_step
        assert "Deploy the correction" in told.next_step
    assert "network" not in advice("operator.raised", task_id=ID, raised="ValueError").next_step


def test_an_out_of_memory_error_names_the_limit() -> None:
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


def test_a_failed_check_is_retried_only_if_nothing_computes_the_scope_again() -> None:
    told = advice("check.failed", task_id=ID)
    assert "`traceplane emit DATASET SCOPE --emission NAME`" in told.next_step
    assert told.next_step.endswith(
        f"If nothing announces the correction, or the checks themselves are corrected and deployed, {RETRY}."
    )
    assert f"Then {RETRY}" not in told.next_step


def test_the_next_step_of_the_error_itself_comes_first() -> None:
    told = advice("commit.not_as_declared", task_id=ID, step="declare column x", code_deployed=True)
    assert told.next_step.startswith("Declare column x. ")


def test_what_a_missing_file_or_secret_needs_is_not_in_the_code() -> None:
    documented = rows(page("reference/errors.md"))
    assert {code for code in documented if code.startswith("files.")} <= set(REMEDIES)
    told = advice("files.missing", task_id=ID)
    assert told.next_step.endswith(f"otherwise put it back. Then {RETRY}.")
    for code in ("files.missing", "files.not_allowed", "files.unavailable", "files.changed", "secret.denied"):
        for deployed in (False, True):
            told = advice(code, task_id=ID, code_deployed=deployed)
            assert told.retry_helps
            assert RETRY in told.next_step
            assert "code folder" not in told.next_step
    assert "`traceplane secret allow NAME --job DAG/JOB`" in advice("secret.denied", task_id=ID).next_step


@pytest.mark.parametrize(
    "code", ["file.unreadable", "file.value_unfit", "webhook.not_rows", "webhook.value_unfit"]
)
def test_a_step_that_ends_in_a_deploy_is_said_once(code: str) -> None:
    told = advice(code, task_id=ID, own=remedies()[code])
    assert told.next_step.lower().count("deploy") == 1
    assert "retry" not in told.next_step
