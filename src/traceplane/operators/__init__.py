"""Operators as data: the name, config, inputs, outputs and error codes of each one.

    spec             `OperatorSpec`: everything the platform knows about an operator
    config           checks a job's config against its operator's schema, and describes the schema in words
    alerting         the operators of alerts
    catalog          lists the operators: built in, or from an installed package
    column_marks     which columns of a job's outputs are personal data, given those of its inputs
    grouping         which dataset's rows a grouped dataset stands for
    dispatching      the operators that the dispatcher runs itself
    market           the operators that make and publish market signals
    platform_alerts  definitions of the platform's own alerts
    processing       the operators for queries, your code, and files

The rest of the platform asks the catalog and knows no operator by name. Built-in operators and those from packages
are found in the same way: by a name, and the location of the spec as `module:NAME`. A package lists its specs in the
entry-point group `traceplane.operators`. A spec is imported on first use; one that cannot be imported affects only the
jobs that use it.
"""
