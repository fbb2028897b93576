from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane import errors
from traceplane.auth import opaque
from traceplane.auth.access import bearer, require_role
from traceplane.auth.opaque import Principal, TokenRecord
from traceplane.auth.roles import Role


@pytest.mark.parametrize(
    "header",
    ["Bearer abc.def-_~+/==", "bearer abc.def-_~+/==", "BEARER   abc.def-_~+/==", " Bearer abc.def-_~+/== "],
)
def test_bearer_reads_the_token(header: str) -> None:
    assert bearer(header) == "abc.def-_~+/=="


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "token.missing"),
        ("", "token.missing"),
        ("   ", "token.missing"),
        ("Bearer", "token.missing"),
        ("Bearer  ", "token.missing"),
        ("Basic YW5uOnB3", "token.malformed"),
        ("abc", "token.malformed"),
        ("Bearerabc", "token.malformed"),
        ("Bearer a b", "token.malformed"),
        ("Bearer a,b", "token.malformed"),
        ("Bearer a\nb", "token.malformed"),
        ("Bearer abc\n", "token.malformed"),
        ("Bearer ключ", "token.malformed"),
    ],
)
def test_bearer_rejects_everything_else(header: str | None, code: str) -> None:
    with pytest.raises(errors.Unauthenticated) as refused:
        bearer(header)
    assert refused.value.code == code
    assert refused.value.value is None


@given(st.text() | st.text().map(lambda rest: "Bearer " + rest))
def test_no_header_makes_bearer_raise_anything_but_unauthenticated(header: str) -> None:
    with contextlib.suppress(errors.Unauthenticated):
        assert bearer(header).isascii()


def record_of(role: Role | None) -> TokenRecord:
    principal = Principal.WORKER if role is None else Principal.USER
    return opaque.issue(principal, org="acme", name="n", now=0.0, role=role)[1]


@pytest.mark.parametrize("needed", list(Role))
@pytest.mark.parametrize("held", [*Role, None])
def test_admin_is_above_writer_is_above_reader_and_a_worker_is_none_of_them(
    held: Role | None, needed: Role
) -> None:
    order = [None, Role.READER, Role.WRITER, Role.ADMIN]
    if order.index(held) >= order.index(needed):
        require_role(record_of(held), needed)
    else:
        with pytest.raises(errors.Forbidden) as refused:
            require_role(record_of(held), needed)
        assert refused.value.code == "access.role_required"
