"""Runs of tasks as OpenLineage events. Tasks are what they were before anybody asked for this: the events are derived
from what is committed, and nothing waits for a receiver.

    events     one event about one run, as JSON; pure
    lineage    from which columns of its inputs a job computes those of its outputs
    receivers  where events go: an HTTP endpoint, or a file

`loops.openlineage` decides what is to be told, and remembers what was.
"""
