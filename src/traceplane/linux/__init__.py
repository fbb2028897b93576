"""What Linux offers to confine a process: the system calls, Landlock's allow-list of paths, a filter of calls.

    connect_supervisor  connections of a confined process, made by somebody who looks where they lead
    forking             a server that forks a confined process for each piece of work, both sides of it
    kernel              the Linux calls the sandbox needs and the standard library lacks
    landlock            landlock: an allow-list of paths, no TCP, and no signals or ptrace out of the sandbox
    network_namespace   a network of its own: nothing in it but a loopback interface that those inside share
    operator_ids        whom operators run as when the worker is root
    plain_files         opens what a path names where somebody may have put a link
    seccomp             a system call filter for operator code: what no data job needs is answered with an error

Used by the worker's sandbox and by the query engine. Nothing here decides what is confined.
"""
