"""Config values are hidden in what operators write."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, encodebytes
from collections.abc import Callable
from urllib.parse import quote

import pytest

from traceplane.model.hidden_values import HiddenValues

CONFIG = {
    "entrypoint": "basic:copy",
    "endpoints": ["https://user:p4ssw0rd@rpc.example.com/v2/K3Y-of-mine?token=t0k%2Fen-1"],
    "deep": [{"password": "hunter2-hunter2"}, 7],
    "short": "abc",
}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (
            "Max retries exceeded with url: /v2/K3Y-of-mine?token=t0k%2Fen-1",
            "Max retries exceeded with url: ***",
        ),
        ("no key K3Y-of-mine", "no key ***"),
        ("token t0k/en-1", "token ***"),
        ("p4ssw0rd", "***"),
        (CONFIG["endpoints"][0], "***"),
        ("hunter2-hunter2 and hunter2-hunter2", "*** and ***"),
        ("in basic:copy: abc, 7", "in basic:copy: abc, 7"),
    ],
)
def test_config_values_and_parts_of_urls_are_hidden(written: str, shown: str) -> None:
    assert HiddenValues([CONFIG]).without({"message": [written, 7, None]}) == {"message": [shown, 7, None]}


KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqh\n'it is \"q\\uoted\"'\n"


@pytest.mark.parametrize(
    "written", [KEY, repr(KEY), json.dumps(KEY), KEY.replace("\n", "\\n"), KEY.replace("\n", "\n  ")]
)
def test_values_are_hidden_as_logs_spell_them(written: str) -> None:
    """`task.log(key=key)` and `print(task.config)` do not write lines and quotes as they are."""
    shown = HiddenValues([{"key": KEY}]).without(f"it is {written}")
    assert "MIIEvQIBADANBgkqh" not in shown
    assert "uoted" not in shown


def test_nothing_is_hidden_without_config_values() -> None:
    for handed in ([], [None], [{"n": 1}]):
        assert HiddenValues(handed).without({"message": "text"}) == {"message": "text"}


def test_an_invalid_url_is_hidden_as_a_whole() -> None:
    assert HiddenValues([{"url": "http://[broken"}]).without("at http://[broken!") == "at ***!"


SPELLED = """pä"ss/wörd\\\\+12 of 'Zoë' <&> 😀"""
JSON_KEY = '{"type": "service_account", "key": "-----BEGIN\\\\nMIIEvQIBADANBgkqh/+"}'
LONG = "swordfish/" * 12


def _lower(encoded: str) -> str:
    return re.sub("%..", lambda escape: escape[0].lower(), encoded)


@pytest.mark.parametrize("secret", [SPELLED, JSON_KEY, LONG], ids=["odd", "json", "long"])
@pytest.mark.parametrize(
    "spell",
    [
        repr,
        ascii,
        json.dumps,
        lambda s: repr(s.encode()),
        lambda s: json.dumps(s, ensure_ascii=False),
        lambda s: json.dumps(s).replace("/", "\\/").replace("<", "\\u003c").replace("&", "\\u0026"),
        lambda s: json.dumps(json.dumps({"key": s})),
        lambda s: repr(json.dumps({"key": s})),
        lambda s: quote(s, safe=""),
        lambda s: _lower(quote(s, safe="")),
        lambda s: quote(s, safe="!'()*~-_."),
        lambda s: quote(quote(s, safe=""), safe=""),
        html.escape,
        lambda s: s.encode().hex(),
        lambda s: encodebytes(s.encode()).decode(),
        lambda s: repr(encodebytes(s.encode())),
    ],
)
def test_secrets_are_hidden_however_their_characters_are_escaped(
    secret: str, spell: Callable[[str], str]
) -> None:
    """Libraries differ in what they escape, and one may escape what another has escaped."""
    written = spell(secret)
    shown = HiddenValues(secrets=[secret]).without(f"<{written}>")
    assert "***" in shown
    assert not re.search("Zo|12|BEGIN|MIIE|account|sword|[0-9a-zA-Z+/]{12}", shown)


CUT = "k+9/swordfish-7f3e1c55d0ab-ü"


@pytest.mark.parametrize("kept", [6, 12, len(CUT) - 1])
@pytest.mark.parametrize("encoded", [CUT, quote(CUT, safe=""), b64encode(CUT.encode()).decode()])
def test_a_secret_that_was_cut_off_with_a_long_text_is_hidden(kept: int, encoded: str) -> None:
    """Long lines and messages are cut wherever their limit is."""
    hidden, filler = HiddenValues(secrets=[CUT]), "word " * 200
    end, beginning = encoded[:kept], encoded[-kept:]
    for text in (
        filler + end,
        beginning.rstrip("=") + " " + filler,
        f"a line\n{filler}{end}\nthe next",
        f"{filler}{CUT}{CUT}{end}",
        f"{filler}{end}\ufffd",
    ):
        shown = hidden.without(text)
        assert end not in shown
        assert beginning not in shown
        assert len(shown) > len(filler)
    assert hidden.without(f"{filler}{CUT[:5]}") == f"{filler}{CUT[:5]}", "too short to say"
