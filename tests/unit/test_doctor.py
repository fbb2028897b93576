"""What `traceplane doctor` makes of a platform's status."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from traceplane import __version__
from traceplane.cli import browser
from traceplane.cli.doctor import _memory, same_clock, same_version
from traceplane.gateway.health import diagnose
from traceplane.wire.control import FailureView, StatusResponse, StuckView

TASK = UUID(int=7)


def status(**fields: Any) -> StatusResponse:
    return StatusResponse(counts={}, datasets=[], **{"outbox_lag_seconds": 0.0, **fields})


def found(answer: StatusResponse) -> dict[str, str]:
    return {finding.code: finding.level for finding in diagnose(answer)}


def test_a_machine_without_memory_an_older_gateway_and_another_clock_are_named(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    for available, level in ((900_000, "warning"), (9_000_000, "ok")):
        file.write_text(f"MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    {available} kB\n")
        assert _memory(file).level == level
    assert same_version(__version__).level == "ok"
    assert same_version("0.0.1").sentence == f"The gateway runs Traceplane 0.0.1, this command {__version__}."
    assert same_clock(-1.5).level == "ok"
    assert same_clock(-60).sentence == "The clock of this machine is 60 s behind the gateway's."
    assert same_clock(60).next_step is not None


def test_a_browser_is_not_called_with_the_link_that_signs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All users of a machine see the command lines of its processes."""
    opened: list[str] = []

    class Windowed(webbrowser.BackgroundBrowser):
        def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
            opened.append(url)
            return True

    monkeypatch.setattr(webbrowser, "get", lambda: Windowed("browser"))
    page = tmp_path / "web_ui.html"
    for code in ("first", "second"):
        assert browser.show(f"http://127.0.0.1:7461/?a=1&b=2#sign-in={code}", page)
        assert opened.pop() == page.as_uri()
        assert f"http://127.0.0.1:7461/?a=1&amp;b=2#sign-in={code}" in page.read_text()
        assert page.stat().st_mode & 0o777 == 0o600


def test_a_browser_is_opened_only_where_somebody_sits() -> None:
    here = {"DISPLAY": ":0"}
    assert browser.is_there(here, at_terminal=True, platform="linux")
    assert browser.is_there({}, at_terminal=True, platform="darwin")
    assert not browser.is_there(here, at_terminal=False, platform="linux")
    assert not browser.is_there({}, at_terminal=True, platform="linux")
    assert not browser.is_there({**here, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}, at_terminal=True)
    assert not browser.is_there({**here, "CI": "true"}, at_terminal=True)


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
