"""`traceplane channel`: how messages reach people and other services."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.model.counted import counted
from traceplane.model.json_object import JsonObject
from traceplane.settings import Settings
from traceplane.wire.channels import (
    ChannelRemoved,
    ChannelRequest,
    ChannelsResponse,
    ChannelTested,
    ChannelView,
)

_PATH = "/api/v1/channels"


@click.group(cls=Noun)
def channel() -> None:
    """Set, test and remove channels: webhooks, Slack, email and PagerDuty."""


@channel.command("set")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--platform-alerts", is_flag=True, help="It gets the platform's own alerts too.")
@as_json
@click.pass_obj
def set_(settings: Settings, name: str, file: Path, platform_alerts: bool, as_json: bool) -> None:
    """Set the channel NAME to what FILE says, in YAML or JSON. Secrets are written as ${secret:NAME}."""
    request = ChannelRequest(_config(file), platform_alerts)
    answer = call(settings, lambda c: c.call("PUT", _path(name), ChannelView, request))
    for warning in answer.warnings:
        say(f"warning: {warning}", err=True)
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is set; try it with `traceplane channel test {answer.name}`")


@channel.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """Show the channels, and how many messages wait for them."""
    answer = call(settings, lambda c: c.call("GET", _PATH, ChannelsResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.channels:
        say(_line(one))
    if not answer.channels:
        say("There are no channels. Set one with `traceplane channel set NAME FILE`.")


@channel.command()
@click.argument("name")
@as_json
@click.pass_obj
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show the channel NAME as it was set."""
    answer = call(settings, lambda c: c.call("GET", _path(name), ChannelView))
    if as_json:
        say_json(answer)
        return
    say(_line(answer))
    say(f"  changed by {answer.changed_by} at {answer.changed_at:%Y-%m-%d %H:%M} UTC")
    say_json(answer.config)


@channel.command("delete")
@click.argument("name")
@click.option("--drop", is_flag=True, help="Even if messages wait for it; they are not sent.")
@click.option("--force", is_flag=True, help="Even if deployed alerts are sent to it.")
@as_json
@click.pass_obj
def delete(settings: Settings, name: str, drop: bool, force: bool, as_json: bool) -> None:
    """Delete the channel NAME with its history. Refused while messages wait for it, or alerts are sent to it."""
    query = {option: "true" for option, given in (("drop", drop), ("force", force)) if given}
    answer = call(settings, lambda c: c.call("DELETE", _path(name), ChannelRemoved, query=query))
    if as_json:
        say_json(answer)
    else:
        with_it = f", with {counted(answer.dropped, 'message')}" if answer.dropped else ""
        say(f"{answer.name} is deleted{with_it}")


@channel.command()
@click.argument("name")
@as_json
@click.pass_obj
def test(settings: Settings, name: str, as_json: bool) -> None:
    """Send one message over the channel NAME now. The exit code is 1 if it is not delivered."""
    answer = call(settings, lambda c: c.call("POST", f"{_path(name)}/test", ChannelTested))
    if as_json:
        say_json(answer)
    else:
        reason = "" if answer.code is None else f": {answer.code}: {answer.reason}"
        say(f"{'delivered' if answer.outcome == 'delivered' else 'not delivered'}{reason}")
    if answer.outcome != "delivered":
        raise SystemExit(1)


def _line(one: ChannelView) -> str:
    platform = ", platform alerts" if one.platform_alerts else ""
    return f"{one.name}  {one.config.get('kind', '?')}, {one.waiting} waiting, {one.dead} dead{platform}"


def _path(name: str) -> str:
    if not name:  # no path of the gateway
        raise InvalidInput(
            "channel.bad_name", "the name of a channel is empty", next_step="for example oncall"
        )
    return f"{_PATH}/{quote(name, safe='')}"


def _config(file: Path) -> JsonObject:
    """JSON is YAML too."""
    import yaml  # other commands start without it

    try:
        config = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InvalidInput("channel.bad_file", f"the file cannot be read: {error}", value=str(file)) from None
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise InvalidInput(
            "channel.bad_file",
            "the file must hold the fields of a channel",
            value=str(file),
            next_step="begin with `kind: webhook`, `slack`, `email` or `pagerduty`",
        )
    return config
