"""Which addresses of Spark Connect servers a worker may use, and what it says of a server that does not fit."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.spark import remote, s3_jars

PROTECTED = "sc://spark.internal:15002/;use_ssl=true;token=abc"


@pytest.mark.parametrize(
    "url", [PROTECTED, "sc://127.0.0.1:1", "sc://localhost", "sc://[::1]:15002/;token=abc", "sc://127.8.9.1"]
)
def test_a_server_here_or_one_with_tls_and_token_may_be_used(url: str) -> None:
    assert remote.checked(url).url == url


@pytest.mark.parametrize(
    ("url", "lacks"),
    [
        ("sc://spark.internal:15002", "TLS and no token"),
        ("sc://spark.internal/;token=abc", "TLS"),
        ("sc://10.0.0.7:15002/;use_ssl=true", "token"),
        ("sc://10.0.0.7:15002/;use_ssl=false;token=abc", "TLS"),
    ],
)
def test_a_server_elsewhere_needs_tls_and_a_token(url: str, lacks: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"spark\.remote_unprotected.*no {lacks}.*use_ssl=true;token="
    ) as refused:
        remote.checked(url)
    assert "abc" not in str(refused.value), "a token is not told"


@pytest.mark.parametrize(
    "url",
    ["spark://h:7077", "sc://", "sc://h:99999", "sc://h/path", "sc://h/;token=", "sc://user@h", "h:15002"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"spark\.remote_invalid.*sc://"):
        remote.checked(url)


@pytest.mark.parametrize(
    ("differs", "code"),
    [
        ({"problem": "UNAUTHENTICATED"}, "spark.remote_unreachable"),
        ({"spark": "4.0.0"}, "spark.remote_version"),
        ({"hadoop": "3.4.1"}, "spark.wrong_hadoop"),
        ({"missing": "org.apache.hadoop.fs.s3a.S3AFileSystem"}, "spark.remote_lacks_jars"),
        ({"cache": None}, "spark.remote_shares_credentials"),
    ],
)
def test_what_a_server_lacks_has_a_code_and_a_next_step(differs: dict[str, str | None], code: str) -> None:
    told = {"spark": version("pyspark"), "hadoop": s3_jars.hadoop_version(), "missing": None, "cache": "true"}
    address = remote.checked(PROTECTED)
    remote.judge(address, told, uses_bucket=True)
    with pytest.raises(TraceplaneError) as refused:
        remote.judge(address, told | differs, uses_bucket=True)
    assert refused.value.code == code
    assert refused.value.next_step
    assert refused.value.value == "sc://spark.internal:15002"
