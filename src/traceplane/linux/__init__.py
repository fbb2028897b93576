"""What Linux offers to confine a process: the system calls, Landlock's allow-list of paths, a filter of calls.

Used by the worker's sandbox and by the query engine. Nothing here decides what is confined.
"""
