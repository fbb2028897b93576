"""The Spark server that a worker runs for its tasks, as untrusted as the code that runs on it.

Tasks reach it over Connect, from the sandbox. `launcher`, `frames`, `network` and `served_port` are on the untrusted
side: they import nothing of the platform.

    classes      a file of Spark's classes as Java has them in memory, which each start maps
    command      how Spark's Java is called: its settings, options and environment
    frames       what travels between a worker and the launcher
    launcher     starts the server confined, and ends it with all that it started
    network      the network that a worker's Spark servers and their tasks share, and nobody else is in
    served_port  a port on which a child of this process serves, and nobody else in its place
    server       the Spark Connect server of a worker: one JVM, confined, started again when it dies
    servers      which server a task uses: a shared one, or its job's own
"""
