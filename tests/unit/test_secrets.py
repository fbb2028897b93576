"""Secrets: how they are sealed, referred to, and kept out of what operators write."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.auth.master_key_file import MasterKeyFile, new_key
from traceplane.errors import InvalidInput, PlatformError
from traceplane.model.hidden_values import HiddenValues
from traceplane.secrets.references import SecretName, found_in, malformed_in, parse_name, replaced
from traceplane.secrets.sealing import MasterKeys, Sealed

USER = SecretName("user", "mainnet_rpc")
PLATFORM = SecretName("platform", "mainnet_rpc")


# Sealing ---------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.text(max_size=30))
def test_what_was_sealed_opens_at_its_place_only(value: bytes, place: str) -> None:
    keys = MasterKeys([new_key()])
    sealed = keys.seal(value, place)
    assert keys.open(sealed, place) == value
    assert value not in sealed.value or len(value) < 8
    with pytest.raises(PlatformError):
        keys.open(sealed, place + "x")
    with pytest.raises(PlatformError):
        MasterKeys([new_key()]).open(sealed, place)


def test_what_an_earlier_master_key_sealed_opens_and_is_sealed_anew() -> None:
    old, new = new_key(), new_key()
    sealed = MasterKeys([old]).seal(b"value", "here")
    both = MasterKeys([new, old])
    assert both.open(sealed, "here") == b"value"
    anew = both.seal_anew(sealed, "here")
    assert anew.value == sealed.value  # only its key
    assert MasterKeys([new]).open(anew, "here") == b"value"
    with pytest.raises(PlatformError) as refused:
        MasterKeys([old]).open(anew, "here")
    assert refused.value.code == "secret.cannot_open"


@pytest.mark.parametrize("position", range(0, 40, 5))
def test_a_changed_byte_is_noticed(position: int) -> None:
    keys = MasterKeys([new_key()])
    sealed = keys.seal(b"a value of some length, to be long enough", "here")
    for changed in (
        Sealed(flipped(sealed.value, position), sealed.key, sealed.master_key_id),
        Sealed(sealed.value, flipped(sealed.key, position), sealed.master_key_id),
    ):
        with pytest.raises(PlatformError):
            keys.open(changed, "here")


def flipped(raw: bytes, position: int) -> bytes:
    return raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]


# The file of master keys -----------------------------------------------------------------------------


def test_a_file_of_master_keys_is_replaced_while_it_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    reader, writer = MasterKeyFile(path), MasterKeyFile(path)
    (old,) = reader.keys()
    new = new_key()
    writer.put_first(new)
    assert reader.keys() == (new, old)
    assert path.stat().st_mode & 0o777 == 0o600
    writer.keep_first()
    assert reader.keys() == (new,)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "abc", "00" * 31, f"{'00' * 32}\nzz\n"])
def test_a_damaged_file_of_master_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "master.key"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        MasterKeyFile(path).keys()
    assert refused.value.code == "keyring.master_key_length"


# References ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mainnet_rpc", USER),
        ("user/mainnet_rpc", USER),
        ("platform/mainnet_rpc", PLATFORM),
        ("other/mainnet_rpc", None),
        ("/mainnet_rpc", None),
        ("1st", None),
        ("", None),
        ("a" * 101, None),
        ("a/b/c", None),
        ("naïve", None),
    ],
)
def test_names_of_secrets(text: str, name: SecretName | None) -> None:
    assert parse_name(text) == name


def test_references_are_found_and_replaced_wherever_they_stand() -> None:
    config = {
        "endpoints": ["https://rpc.example/${secret:mainnet_rpc}", "${secret:platform/mainnet_rpc}"],
        "nested": [{"deep": "${secret:mainnet_rpc}${secret:mainnet_rpc}"}],
        "number": 5,
        "plain": "$secret {secret:x}",
    }
    assert found_in(config) == {USER, PLATFORM}
    assert malformed_in(config) is None
    assert replaced(config, {USER: "k1", PLATFORM: "k2"}) == {
        "endpoints": ["https://rpc.example/k1", "k2"],
        "nested": [{"deep": "k1k1"}],
        "number": 5,
        "plain": "$secret {secret:x}",
    }


def test_a_value_that_looks_like_a_reference_is_not_replaced_again() -> None:
    assert replaced("${secret:mainnet_rpc}", {USER: "${secret:platform/mainnet_rpc}", PLATFORM: "k2"}) == (
        "${secret:platform/mainnet_rpc}"
    )


@pytest.mark.parametrize(
    "text", ["${secret:}", "${secret:a b}", "${secret}", "x ${secret:other/a} y", "${secret:a"]
)
def test_what_looks_like_a_reference_and_is_none_is_found(text: str) -> None:
    assert malformed_in({"a": [text]}) is not None
    assert found_in(text) == set()


ELSEWHERE = [
    ("https://user:${secret:mainnet_rpc}@rpc.example/v1", "x@evil.example/"),
    ("https://user:${secret:mainnet_rpc}@rpc.example/v1", "evil.example?"),
    ("https://user:${secret:mainnet_rpc}@rpc.example/v1", "443\\"),
    ("https://user:${secret:mainnet_rpc}@rpc.example/v1", "x\n"),
    ("https://${secret:mainnet_rpc}@${secret:platform/mainnet_rpc}/v1", "evil.example#"),
    ("https://${secret:mainnet_rpc}.rpc.example/v1", "evil.example/"),
    ("https://${secret:mainnet_rpc}.rpc.example/v1", "me@evil"),
    ("https://rpc.example${secret:mainnet_rpc}", ".evil.example/"),
    ("https://rpc.example:${secret:mainnet_rpc}", "@evil.example"),
    ("jdbc:postgresql://u:${secret:mainnet_rpc}@db.example/shop", "evil.example/"),
]


@pytest.mark.parametrize(("text", "value"), ELSEWHERE)
def test_a_value_that_leads_to_another_host_is_refused(text: str, value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        replaced({"urls": [text]}, {USER: value, PLATFORM: "rpc.example"})
    assert (refused.value.code, refused.value.value) == ("secret.other_host", "${secret:mainnet_rpc}")
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("https://user:${secret:mainnet_rpc}@rpc.example/v1", "p:w@5%2F"),
        ("https://${secret:mainnet_rpc}.rpc.example/v1", "me-1"),
        ("https://${secret:mainnet_rpc}", "rpc.example/v1?key=1"),
        ("https://user@${secret:mainnet_rpc}/v1", "rpc.example/v1"),
        ("https://rpc.example/${secret:mainnet_rpc}", "v1/a?b=c#@evil.example"),
        ("https://rpc.example?${secret:mainnet_rpc}", "a=b/@evil.example"),
        ("${secret:mainnet_rpc}/v1", "https://rpc.example"),
        ("Bearer ${secret:mainnet_rpc}", "a/b@c ://d"),
    ],
)
def test_other_values_are_put_in_as_they_are(text: str, value: str) -> None:
    assert replaced(text, {USER: value}) == text.replace("${secret:mainnet_rpc}", value)


# Redaction -------------------------------------------------------------------------------------------

SECRET = 'p+ss w/rd "ünï" & 5%'


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        repr(SECRET),
        json.dumps(SECRET),
        json.dumps({"a": SECRET}),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        base64.b64encode(f"us:{SECRET}:x".encode()).decode(),
        base64.urlsafe_b64encode(f"u:{SECRET}".encode()).decode(),
    ],
)
def test_a_secret_is_recognized_in_its_usual_forms(written: str) -> None:
    hidden = HiddenValues(secrets=[SECRET]).without(f"before {written} behind")
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" behind")
    left = hidden.removeprefix("before ").removesuffix(" behind")
    assert len(left) <= len('{"a": "***"}') + 6


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40),
    st.binary(max_size=9),
)
def test_base64_of_something_with_a_secret_in_it_reveals_nothing(secret: str, before: bytes) -> None:
    written = base64.b64encode(before + secret.encode() + b"|behind").decode()
    hidden = HiddenValues(secrets=[secret]).without(written)
    for kept in hidden.split("***"):
        padded = kept + "=" * (-len(kept) % 4)
        assert secret.encode()[2:-2] not in base64.b64decode(
            padded + "====" if len(kept) % 4 == 1 else padded
        )
