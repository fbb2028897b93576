"""What Linux offers to confine a process, and the one way in which all untrusted work is forked and confined.

    confine             drops a process's privileges before it runs untrusted code
    connect_supervisor  connections of a confined process, made by a supervisor that checks their targets
    conversation        messages between a forked process and its owner, as bytes on their socket
    fork_server         a server that forks a process for each piece of work, both sides
    kernel              the Linux calls the sandbox needs and the standard library lacks
    landlock            Landlock: an allow-list of paths, no TCP, and no signals or ptrace out of the sandbox
    listeners           whose processes listen at an address of this machine
    network_namespace   a private network: only a loopback interface, shared by the processes inside
    operator_ids        the users that operators run as when the worker is root
    plain_files         opens files where somebody may have put a link in the path
    seccomp             a system call filter for operator code: calls that no data job needs fail

Operators, queries and decoders each have a `fork_server`, and each process drops its privileges with `confine`. Its
package decides what it keeps and passes that as data (`confine.Allowed`). Queries and decoders also share a
`conversation`: one request, one answer, and the process is killed. Operators need more, which is in `sandbox`. They run
in slots: a slot keeps a child ready before there is a task, supervises its connections, and outlives it to end every
process that it left behind. And an operator talks with its wrapper in both directions while it runs.
"""
