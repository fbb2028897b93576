"""The Spark server of a worker, trusted as little as the code that runs on it.

Tasks reach it over Connect, from the sandbox. `launcher`, `frames`, `network` and `served_port` are on the untrusted
side: they import nothing of the platform.

    classes              a class data archive of Spark, which each start maps into memory
    command              how Spark's Java is called: its settings, options and environment
    credentials_jar      the platform's own class for Spark's Java, and how it is compiled
    frames               messages between a worker and the launcher
    launcher             starts the server confined, and ends it with everything that it started
    launcher_connection  the worker's end of the launcher's control socket
    network              the network that a worker's Spark servers and their tasks share, and nobody else can use
    remote               a server that somebody else runs: whether a worker may use it
    s3_jars              the jars with which Spark reads S3: which, where, and how they get there
    served_port          a port on which only a child of this process can serve
    server               the Spark Connect server of a worker: one JVM, confined, restarted when it dies
    server_log           the server's output, kept in a file of limited size
    servers              which server a task uses: a shared one, or its job's own
"""
