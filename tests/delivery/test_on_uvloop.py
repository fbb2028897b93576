"""On uvloop, which services use, connections end as they do on Python's own loop."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.certificates import Authority
from tests.delivery import test_answers, test_mail
from tests.delivery.receiver import pieces, silence

ENDLESS = pieces(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, again=0.0)


@pytest.mark.parametrize(
    "scenario",
    [
        functools.partial(test_answers.test_2xx_is_delivered, 200),
        functools.partial(test_answers.test_without_an_answer_it_is_tried_again, silence),
        functools.partial(
            test_answers.test_a_message_that_was_accepted_is_not_sent_again_whatever_follows, ENDLESS
        ),
        test_answers.test_a_message_that_was_accepted_before_it_was_read_is_delivered,
        functools.partial(test_answers.test_a_receiver_that_reads_nothing_keeps_no_connection, False),
        functools.partial(test_answers.test_a_receiver_that_reads_nothing_keeps_no_connection, True),
        test_mail.test_mail_arrives_with_its_facts,
        test_mail.test_nobody_there_is_tried_again,
        test_mail.test_a_server_that_hangs_after_the_mail_is_tried_again,
        test_mail.test_a_server_that_hangs_after_accepting_the_mail_does_not_get_it_again,
        functools.partial(test_mail.test_a_server_that_misbehaves_is_tried_again, "silent", "implicit"),
        functools.partial(test_mail.test_a_server_that_misbehaves_is_tried_again, "endless_lines", "none"),
    ],
)
def test_plain_connections(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario()

    uvloop.run(run())


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_encrypted_connections(tls: str, authority: Authority) -> None:
    async def run() -> None:
        await test_mail.test_mail_and_password_are_encrypted(tls, authority)
        await test_mail.test_a_server_that_hangs_keeps_no_connection(authority)
        await test_mail.test_a_certificate_that_is_not_the_hosts_gets_nothing(tls, authority)

    uvloop.run(run())
