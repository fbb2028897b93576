from __future__ import annotations

import pytest

from traceplane.auth.roles import RESERVED, Rights, Role, RoleMeaning, rights

DEFINED = {**RESERVED, "finance": RoleMeaning(Role.WRITER, True), "guests": RoleMeaning(Role.READER, False)}


@pytest.mark.parametrize(
    ("held", "named", "roles", "role", "sees_pii"),
    [
        (None, ["writer"], {"writer"}, Role.WRITER, False),
        (None, ["reader", "finance"], {"reader", "finance"}, Role.WRITER, True),
        (None, ["deleted"], set(), None, False),
        (None, None, set(), None, False),
        ([], None, set(), None, False),
        (["finance"], None, {"finance"}, Role.WRITER, True),
        (["admin"], ["reader"], {"reader"}, Role.READER, False),
        (["admin"], ["finance"], {"finance"}, Role.WRITER, True),
        (["finance"], ["reader"], {"reader"}, Role.READER, False),
        (["finance"], ["writer", "admin"], {"writer"}, Role.WRITER, False),
        (["reader"], ["finance"], set(), None, False),
        (["reader"], ["admin"], set(), None, False),
        ([], ["reader"], set(), None, False),
        (["admin", "guests"], None, {"admin", "guests"}, Role.ADMIN, True),
    ],
)
def test_a_token_has_no_more_than_its_member_and_no_more_than_it_names(
    held: list[str] | None, named: list[str] | None, roles: set[str], role: Role | None, sees_pii: bool
) -> None:
    assert rights(DEFINED, held, named) == Rights(frozenset(roles), role, sees_pii)
