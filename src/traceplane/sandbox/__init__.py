"""Where operator code runs: in a process of its own that can reach its task's files and nothing else.

On the worker's side, which is trusted:

    assignment        what the wrapper asks of the sandbox, and what it gets back
    batch             several short tasks of one job, handed to one child together
    child_log         what a child writes to its log, in lines
    disk_work         outputs written and folders removed, in threads
    idle_slots        the slots whose child waits for a task, and the tasks that wait for a slot
    job_queues        tasks that may share a child, by job
    pool              runs tasks, alone or several of one job in one child
    reach             what a child may reach for its task, and which tasks may share it
    sandbox_settings  how a sandbox is set up, and how weak it may be
    sandboxes         the sandboxes of one worker: without the network, and with it
    server            the wrapper's side of the fork server: start it, ask it for slots, notice its end, stop it
    slot              the wrapper's side of one slot, and of the child waiting in it
    slot_supply       children for tasks: the fork server kept running, its slots kept open
    staging           the folders of one run: made before it, sealed after success, removed after failure
    task_run          one run of one task in one child
    uid_lease         uids for operators, held by one worker of the host at a time

On the other side, which imports nothing of the platform:

    confinement       which barriers this machine has for operators, and how one is put behind them
    frames            what travels between the wrapper, the fork server, its slots and the child that runs a task
    private_root      a file system of its own for each task: the interpreter, its code, its inputs, its folders
    process_tree      ending every process that something started, and knowing that none is left
    runner            inside the sandbox: wait for a task, give up all power, run the operator, report
    selfcheck         the first operator of every sandbox: tries what must be impossible, so that claims are measured
    server_process    the fork server: a clean Python that forks, so that no task pays for starting an interpreter
    slot_main         one slot of the fork server: tasks one after another, each in a fresh child or in one of its job
    surroundings      what a child that runs a second task of its job puts right first
"""
