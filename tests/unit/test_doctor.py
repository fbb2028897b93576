"""What `traceplane doctor` makes of a platform's status."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from traceplane.gateway.health import diagnose
from traceplane.wire.control import FailureView, StatusResponse, StuckView

TASK = UUID(int=7)


def status(**fields: Any) -> StatusResponse:
    return StatusResponse(counts={}, datasets=[], **{"outbox_lag_seconds": 0.0, **fields})


def found(answer: StatusResponse) -> dict[str, str]:
    return {finding.code: finding.level for finding in diagnose(answer)}


def test_a_platform_at_rest_is_well() -> None:
    assert found(status()) == {"dispatcher": "ok", "work": "ok"}


def test_what_stands_still_is_a_problem() -> None:
    stuck = StuckView("shop", "totals", "no_worker", "no worker of the runtime spark is there")
    assert found(status(outbox_lag_seconds=31.0, stuck=[stuck])) == {
        "dispatcher_silent": "problem",
        "stuck_no_worker": "problem",
    }


def test_a_dead_task_is_a_problem_and_one_that_is_tried_again_is_none_yet() -> None:
    dead = FailureView("shop", "totals", "dead", 2, "operator.raised", "ZeroDivisionError", TASK)
    retrying = FailureView("shop", "sales", "retrying", 1, "operator.timeout", "too long", TASK)
    answer = status(failed=[dead, retrying])
    assert found(answer) == {"dispatcher": "ok", "operator.raised": "problem", "operator.timeout": "warning"}
    (first, *_) = (finding for finding in diagnose(answer) if finding.level == "problem")
    assert first.sentence == "shop/totals: 2 tasks dead: ZeroDivisionError"
    assert first.next_step == f"`traceplane explain {TASK}`"


def test_messages_that_nobody_got_are_named() -> None:
    (finding,) = (f for f in diagnose(status(dead_messages={"ops": 3})) if f.level == "warning")
    assert finding.sentence == "ops: 3 messages not delivered."
    assert finding.next_step is not None
