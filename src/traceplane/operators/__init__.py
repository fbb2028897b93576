"""Operators as data: what each one is called, accepts, reads, writes and may fail with.

    spec          `OperatorSpec`: all that the platform knows of an operator
    config        a job's config against its operator's schema, and the schema in words
    catalog       which operators there are: built in, or from an installed package
    grouping      which dataset the rows of a grouped one are
    dispatching   the operators that the dispatcher runs itself
    market        the operators that make and publish market signals
    processing    the operators for queries, your code, and files

The rest of the platform asks the catalog and knows no operator by name. A built-in operator and one from a package
are found in the same way: by a name, and the place of its spec as `module:NAME`. A package names its place in the
entry-point group `traceplane.operators`. A spec is imported when somebody asks for it; one that cannot be imported
is a problem of the jobs that use it and of nothing else.
"""
