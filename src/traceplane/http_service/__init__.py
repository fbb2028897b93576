"""A small HTTP toolkit for the internal and the public API: routes are data, bodies are msgspec types.

A service lists its `Route`s and gives them to `App`, a plain ASGI application; `serve` runs it. The order of
a call is fixed: find the route, authenticate from the headers alone, read the body up to its limit, decode it
into the declared type, run the handler, encode its answer. Every failure on the way is the same JSON,
`{"error": {"code", "message", "value"?, "next_step"?}}`, with the status of its class in `errors`; one that
nobody foresaw is a 500 that carries a reference to the log line and nothing else. Every answer has the request's id,
which every log event of the call carries too, and headers that keep browsers from storing, framing or guessing it.

What Postgres cannot hold is refused here, by path: NUL characters in text and integers beyond 64 bits.

Paths are matched as they were sent, without percent-decoding, so an encoded slash stays inside its path
parameter and `/internal%2Fevents` is no other way to write `/internal/events`.

A connection costs its sender nothing, so it has to be used: a head and a body must arrive in time, an answer must be
read, an idle connection is closed after a while, and there are only so many at once, in all and of one address
(`ConnectionLimits`). How long an answer takes is the handler's own affair. Where there are too many connections, those
go first whose caller has shown no token and keeps the server waiting, with a body or by not reading.

    allowed_values  the values that a field of a request may have, where they are few
    app             routes become a plain ASGI application
    client          typed JSON calls to a service
    lookups         the addresses of hosts that users name
    metrics         the metrics of a process, on a port of their own
    openapi         the OpenAPI document of a list of routes
    outgoing        calls to addresses that users name
    routes          what a service is made of, as data
    server          connections that have to be used, of which there are only so many
    tls             certificate files, renewed while a service runs
"""
