"""The OpenAPI document of a list of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from traceplane.http_service.routes import CAPABILITY, JSON, PUBLIC, WORKER, ErrorBody, Reply, Route, Stream

_ERRORS = {
    400: "A value is malformed or out of range.",
    401: "No token, or one that cannot be trusted.",
    403: "The token does not grant this.",
    404: "No such thing.",
    409: "The state of the world does not allow it now.",
    413: "The body is too long.",
    415: "The body is not JSON.",
    429: "The caller calls too often, or too much at once; try again after Retry-After seconds.",
    500: "Something went wrong on our side; the value is a reference to report.",
    503: "Something the service needs is not there; try again after Retry-After seconds.",
}

_SCHEMES = {
    "user": "A user token with the role that the operation names, or a higher one: admin, writer, reader; known: none.",
    WORKER: "A worker token.",
    CAPABILITY: "The tokens of the tasks that the call is about, in its body, not in the header.",
}


def principal_of(route: Route) -> str:
    """What a caller of the route authenticates as: public, worker or capability, or user, whose role it names."""
    return route.auth if route.auth in (PUBLIC, WORKER, CAPABILITY) else "user"


def openapi(routes: Sequence[Route], title: str, version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 description of `routes`, made from their msgspec types."""
    types: list[Any] = list(dict.fromkeys([ErrorBody, *(route.errors.type for route in routes)]))
    for route in routes:
        types += [
            t for t in (route.request, route.response, route.query) if t not in (None, bytes, Reply, Stream)
        ]
    described, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = {type_: _as_int64(schema) for type_, schema in zip(types, described, strict=True)}
    components = _as_int64(components)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    error = {JSON: {"schema": schemas[ErrorBody]}}
    principals = sorted({principal_of(route) for route in routes} - {PUBLIC})
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                f"Error{code}": {"description": why, "content": error} for code, why in _ERRORS.items()
            },
            "securitySchemes": {name: {**bearer, "description": _SCHEMES[name]} for name in principals},
        },
    }


def _operation(route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    codes = {400, 404, 409, 500, 503, *(status for status in route.statuses if status in _ERRORS)}
    text = {"type": "string"}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": text}
            for name in re.findall(r"\{(\w+)\}", route.path)
        ],
    }
    if route.query is not None:
        query = components[schemas[route.query]["$ref"].rpartition("/")[2]]
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
            for name, schema in query["properties"].items()
        ]
    if route.request is not None:
        codes |= {413, 415}
        content = {"*/*": {}} if route.request is bytes else {JSON: {"schema": schemas[route.request]}}
        operation["requestBody"] = {"required": route.request is not bytes, "content": content}
    if route.auth != PUBLIC:
        codes |= {401, 403, 429}
        principal = principal_of(route)
        roles = [route.auth] if principal == "user" else []
        operation["security"] = [{principal: roles}]
    else:
        operation["security"] = []
    operation["x-traceplane-principal"] = principal_of(route)
    if principal_of(route) == "user":
        operation["x-traceplane-role"] = route.auth
    answer: dict[str, Any] = {"description": "Done."}
    if route.response is not None:
        answer["content"] = (
            {"*/*": {}} if route.response in (Reply, Stream) else {JSON: {"schema": schemas[route.response]}}
        )
    status = 204 if route.response is None else 200
    elsewhere = {"303": {"description": "Go on there."}} if 303 in route.statuses else {}
    failures = {str(code): _failure(route, code, schemas) for code in sorted(codes)}
    operation["responses"] = {str(status): answer, **elsewhere, **failures}
    return operation


def _failure(route: Route, code: int, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    if route.errors.type is ErrorBody:
        return {"$ref": f"#/components/responses/Error{code}"}
    return {"description": _ERRORS[code], "content": {JSON: {"schema": schemas[route.errors.type]}}}


def _as_int64(schema: Any) -> Any:
    """Say in the schema what `_refuse_unstorable` does to integers."""
    match schema:
        case {"type": "integer"}:
            return {"format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1, **schema}
        case dict():
            return {key: _as_int64(value) for key, value in schema.items()}
        case list():
            return [_as_int64(value) for value in schema]
        case _:
            return schema
