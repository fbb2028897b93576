"""File sources: new files below a folder or an S3 prefix become events. Nothing here does any I/O, except `rows`.

    a listing ──names that match the pattern──► files of a partition ──none of them still being written──► one event

A dispatcher lists the files and compares them with those that were there before; a job with the operator `file_rows`,
or one with the user's own operator, reads the files of each partition.

    config   a file source as deployed
    pattern  the names of files, and the partition that each belongs to
    rows     the operator that turns files into typed rows
    specs    the operators, as listed in the catalog
"""
