"""Traceplane's side of the control suite.

Run like every peer, `python -m bench.ours_control <measurement> --url URL --tasks N [...]`, in a process
of its own, so that we are started, timed and stopped exactly as they are. Each function starts what it
needs (dispatcher, worker) as processes of its own through `measure.worker_processes`, which stops them.

    drain     as every peer: `arguments.tasks` no-op tasks exist, durably queued, before the workers start.
              The clock runs from the first body to the last durable completion. Task bodies call
              `measure.Starts.of_environment().mark(number)`. The database may be empty, or hold what an
              earlier `seed` and earlier `drain`s left: make the schema if it is missing, use a job of
              one's own, and wait only for one's own tasks.
              -> {"per_second": float}
    latency   as every peer: `arguments.rate` events a second at a warm dispatcher and worker, from just
              before the event is sent to the first line of the task body, `arguments.tasks` samples.
              -> {"p50_ms": float, "p99_ms": float}
    seed      the schema, `arguments.tasks` finished tasks and `arguments.waiting` tasks that stay queued
              (of a job that is held, so that no later drain runs them), with events and lineage as real
              ones would leave. Bulk SQL is fine; ends with VACUUM (ANALYZE).
              -> {"finished": int, "waiting": int}, counted in the tables
    routing   a DAG whose source feeds one reactive job, beside `arguments.jobs` unrelated jobs on other
              datasets. Accept `arguments.tasks` events and turn each into its task; the clock runs from
              the first event sent to the last task durably created. No worker.
              -> {"per_second": float} in events
"""

from __future__ import annotations

import asyncio

from bench.peers import measure


async def drain(arguments: measure.Arguments) -> dict[str, object]:
    raise NotImplementedError("Traceplane's drain is not there yet")


async def latency(arguments: measure.Arguments) -> dict[str, object]:
    raise NotImplementedError("Traceplane's latency is not there yet")


async def seed(arguments: measure.Arguments) -> dict[str, object]:
    raise NotImplementedError("Traceplane's seed is not there yet")


async def routing(arguments: measure.Arguments) -> dict[str, object]:
    raise NotImplementedError("Traceplane's routing is not there yet")


MEASUREMENTS = {"drain": drain, "latency": latency, "seed": seed, "routing": routing}

if __name__ == "__main__":
    given = measure.parse_arguments()
    measure.report(asyncio.run(MEASUREMENTS[given.measurement](given)))
