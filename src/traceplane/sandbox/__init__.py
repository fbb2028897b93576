"""Runs operator code in a separate process that can reach its task's files and nothing else.

On the worker's side, which is trusted:

    assignment        the wrapper's request to the sandbox, and the result
    batch             several short tasks of one job, sent to one child together
    child_log         the lines that an operator writes
    disk_work         writes outputs and removes folders, in threads
    idle_slots        the slots whose child waits for a task, and the tasks that wait for a slot
    job_queues        tasks that may share a child, by job
    pool              runs tasks, alone or several of one job in one child
    reach             what a child may reach for its task, and which tasks may share it
    sandbox_settings  the settings of a sandbox, and how weak it may be
    sandboxes         the sandboxes of one worker: without the network, and with it
    server            the wrapper's side of the fork server: start it, request slots, notice its end, stop it
    slot              the wrapper's side of one slot, and of the child waiting in it
    slot_supply       provides children for tasks: keeps the fork server running and its slots open
    staging           the folders of one run: created before it, sealed after success, removed after failure
    task_run          one run of one task in one child
    uid_lease         uids for operators, each held by one worker of the host at a time

On the other side, which imports nothing of the platform:

    confinement       which barriers this machine has for operators, and how a process is confined by them
    frames            messages between the wrapper, the fork server, its slots and the child that runs a task
    operator_call     calls an operator with its task, and says how it ended
    private_root      a private file system for each task: the interpreter, its code, its inputs, its folders
    process_tree      ends every process of a tree, and proves that none is left
    runner            inside the sandbox: wait for a task, drop all privileges, run the operator, report
    selfcheck         the first operator of every sandbox: tries to break out, so that isolation is measured
    server_process    the fork server: a clean Python that forks, so that no task pays for starting an interpreter
    slot_process      one slot of the fork server: runs tasks one by one, each in a fresh child or one of its job
    surroundings      what a child restores before it runs another task of its job
"""
