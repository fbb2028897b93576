"""What most people write first: a Starlette handler that inserts the body of each call, and answers.

On uvicorn with uvloop and httptools, as its documentation recommends, and with asyncpg's pool in its default size. It
checks no signature, parses nothing, and makes neither events nor tasks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import asyncpg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

TABLE = """
create table if not exists deliveries (key text primary key, body text not null, received_at timestamptz not null)
"""
INSERT = "insert into deliveries (key, body, received_at) values ($1, $2, now()) on conflict do nothing"


async def receive(request: Request) -> JSONResponse:
    body = await request.body()
    await request.app.state.pool.execute(INSERT, request.headers["x-github-delivery"], body.decode())
    return JSONResponse({"status": "accepted"})


def main(url: str, port: int) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncpg.create_pool(url) as pool:
            await pool.execute(TABLE)
            app.state.pool = pool
            yield

    app = Starlette(routes=[Route("/hooks/default/orders", receive, methods=["POST"])], lifespan=lifespan)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
