"""Datasets as Iceberg tables, for readers that are not ours: a REST catalog, read-only.

Nothing here is the truth. Which rows a dataset has is what the catalog in Postgres says (`query.catalog`); metadata,
manifests and delete files are derived from it when somebody loads a table:

    avro              Avro files, as manifests are
    bounds            what the statistics of a file say, as Iceberg writes it
    column_types      columns as Iceberg's, with ids, and how they are found by name
    derivation        from the files of a dataset to the metadata of a table
    derived_files     files that were derived, in the object store
    manifests         data files, delete files and snapshots as manifests and lists of them
    partitioning      partitions as Iceberg's, where the two mean the same
    position_deletes  the rows of files that newer commits hide, as files
    states            which state of the catalog a caller asks for: a time, versions of DAGs, or what is current
    table_metadata    the metadata of a table with one snapshot
    tables            which datasets are tables, and for whom

A commit's files never change. So a manifest is made once for a stretch of commits, and its name is a hash of what it is
made from: whoever loads the same state finds it, and a new commit changes one of them. Files lie below
`iceberg/{organization}/{dataset}/{generation}/{day}/`. Each day begins anew, so that garbage collection needs to know
nothing but the date: it deletes the folders of days that ended before the grace period.

A caller who may not see all columns gets no table: files have all of them.
"""
