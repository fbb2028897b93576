"""No channel reaches what only this machine reaches, whoever names the address, and however."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from tests.certificates import Authority
from tests.delivery.messages import LOOPBACK, channels, dead, refusal, retry, sent
from tests.delivery.receiver import answer, receiving
from traceplane.delivery.channels.mail import Mail
from traceplane.delivery.channels.pagerduty import PagerDuty
from traceplane.delivery.channels.slack import Slack
from traceplane.delivery.channels.webhook import Webhook
from traceplane.delivery.outcome import Delivered
from traceplane.delivery.sending import Channel
from traceplane.http_service.outgoing import Resolve
from traceplane.linux.connect_supervisor import Address

INSIDE = (
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "::1",
    "fe80::1",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
)
MISLEADING = (
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://[::ffff:7f00:1%25lo]/",
    "https://user:pass@hooks.example/",
    "https://hooks.example@127.0.0.1/",
    "https://hooks.example#@127.0.0.1/",
    "https://hooks.example\\@127.0.0.1/",
    "https://hooks.example/\r\nx: y",
    "https://hooks.example:0/",
    "http://hooks.example/",
    "file:///etc/passwd",
    "ftp://hooks.example/",
    "gopher://127.0.0.1:25/_HELO",
    "unix:///var/run/docker.sock",
)


def by_url(url: str) -> list[Channel]:
    return [Webhook(url=url), PagerDuty(routing_key="${secret:key}", url=url)]


def answering(*answers: Sequence[str]) -> tuple[Resolve, list[str]]:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[Address]:
        asked.append(host)
        return [ipaddress.ip_address(text) for text in answers[min(len(asked), len(answers)) - 1]]

    return resolve, asked


@pytest.mark.parametrize("address", INSIDE)
async def test_addresses_inside_are_refused_as_written_and_as_resolved(address: str) -> None:
    literal = f"[{address}]" if ":" in address else address
    strict = channels("allowed.corp:1")
    for channel in by_url(f"https://{literal}/"):
        assert refusal(channel, by=strict).code == "outgoing.not_allowed"
    mail = Mail(host=address, sender="a@x.example", to=["b@x.example"])
    assert refusal(mail, by=strict).code == "outgoing.not_allowed"
    resolve, _ = answering(["93.184.216.34", address])
    strict = channels("allowed.corp:1", resolve=resolve)
    for channel in (
        *by_url("https://hooks.example/"),
        Slack(url="${secret:url}"),
        Mail(host="mail.example", sender="a@x.example", to=["b@x.example"]),
    ):
        if not isinstance(channel, Slack):
            strict.check(channel)
        outcome = await sent(channel, by=strict, key="k" * 32, url="https://hooks.example/x")
        assert address not in dead(outcome, "outgoing.not_allowed").reason


@pytest.mark.parametrize("url", MISLEADING)
async def test_urls_that_programs_read_differently_are_refused(url: str) -> None:
    resolve, asked = answering(["93.184.216.34"])
    strict = channels("allowed.corp:1", resolve=resolve)
    for channel in by_url(url):
        assert refusal(channel, by=strict).code == "outgoing.bad_url"
    # A secret is checked, too: its value is not known before.
    for channel in (Slack(url="${secret:url}"), Webhook(url="${secret:url}")):
        dead(await sent(channel, by=strict, url=url), "outgoing.bad_url")
    assert asked == []


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST", "ip6-localhost"])
async def test_names_of_this_machine_are_refused(host: str) -> None:
    async def resolve(host: str, port: int) -> list[Address]:
        return [ipaddress.ip_address("127.0.0.1")]

    async with receiving(answer(200)) as receiver:
        strict = channels("allowed.corp:1", resolve=resolve)
        outcome = await sent(Webhook(url=f"https://{host}:{receiver.port}/"), by=strict)
    dead(outcome, "outgoing.not_allowed")
    assert receiver.connections == 0


async def test_a_host_is_resolved_once_and_the_checked_address_is_called() -> None:
    async with (
        receiving(answer(200)) as checked,
        receiving(answer(200), host="127.0.0.2") as other,
    ):
        resolve, asked = answering(["127.0.0.1"], ["127.0.0.2"])
        by = channels(f"127.0.0.1:{checked.port}", resolve=resolve)
        assert await sent(Webhook(url=f"http://rebinding.example:{checked.port}/"), by=by) == Delivered()
        assert asked == ["rebinding.example"]
        assert (checked.connections, other.connections) == (1, 0)
        # The host of the request is the name, which the receiver knows.
        assert checked.received[0].header("host") == f"rebinding.example:{checked.port}"
        dead(
            await sent(Webhook(url=f"http://rebinding.example:{checked.port}/"), by=by),
            "outgoing.not_allowed",
        )


async def test_a_secret_cannot_lead_a_checked_url_elsewhere() -> None:
    async with receiving(answer(200)) as inside:
        by = channels("hooks.corp")
        channel = Webhook(url="https://hooks.corp${secret:tail}")
        by.check(channel)
        for tail in (
            f"@127.0.0.1:{inside.port}/",
            f".127.0.0.1:{inside.port}/",
            f":80@127.0.0.1:{inside.port}",
        ):
            outcome = await sent(channel, by=by, tail=tail)
            dead(outcome, "secret.other_host")
    assert inside.connections == 0


@pytest.mark.parametrize("port", [22, 80, 443, 5432, 6379, 11211])
def test_mail_goes_to_ports_of_mail_servers(port: int) -> None:
    mail = Mail(host="mail.example", port=port, sender="a@x.example", to=["b@x.example"])
    strict = channels("allowed.corp:1")
    assert refusal(mail, by=strict).code == "outgoing.bad_host"
    channels("mail.example").check(mail)
    channels(f"mail.example:{port}").check(mail)


@pytest.mark.parametrize(
    "host",
    ["", "mail example", "mail.example\r\n", "0x7f.1", "2130706433", "a@b", "mail.example:25", "é.example"],
)
def test_mail_goes_to_hosts(host: str) -> None:
    mail = Mail(host=host, sender="a@x.example", to=["b@x.example"])
    assert refusal(mail, by=channels(LOOPBACK)).code == "outgoing.bad_host"


def test_mail_without_tls_needs_the_setting() -> None:
    mail = Mail(host="mail.corp", tls="none", sender="a@x.example", to=["b@x.example"])
    assert refusal(mail, by=channels("allowed.corp:1")).code == "outgoing.bad_host"
    channels("mail.corp").check(mail)


async def test_a_certificate_of_another_host_is_refused(authority: Authority) -> None:
    resolve, _ = answering(["127.0.0.1"])
    async with receiving(answer(200), tls=authority.server()) as receiver:
        by = channels(LOOPBACK, resolve=resolve, tls=authority.trust())
        url = f"https://127.0.0.1:{receiver.port}/"
        assert await sent(Webhook(url=url), by=by) == Delivered()
        retry(await sent(Webhook(url=f"https://hooks.corp:{receiver.port}/"), by=by), "outgoing.failed")
        untrusting = channels(LOOPBACK)
        retry(await sent(Webhook(url=url), by=untrusting), "outgoing.failed")
    assert len(receiver.received) == 1


async def test_the_channels_config_cannot_choose_the_method_or_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with receiving(answer(200)) as proxy, receiving(answer(200)) as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await sent(Webhook(url=receiver.url)) == Delivered()
    assert proxy.connections == 0
    assert receiver.received[0].request.startswith("POST ")
