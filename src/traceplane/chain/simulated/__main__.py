"""`python -m traceplane.chain.simulated --port 0 --seed 1 --blocks 1000`: prints its URL, then serves."""

from __future__ import annotations

import argparse
import asyncio

import uvloop

from traceplane.chain.simulated.server import serve


async def _run(options: argparse.Namespace) -> None:
    async with serve(**vars(options)) as simulator:
        print(simulator.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="traceplane.chain.simulated", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=1000, help="number of the initial head")
    parser.add_argument("--transactions-per-block", type=int, default=10)
    parser.add_argument("--chain-id", type=int, default=1337)
    parser.add_argument("--cached-blocks", type=int, default=1024, help="about 25 kB each")
    try:
        uvloop.run(_run(parser.parse_args()))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
