"""Columnar data: Arrow types by name, filters, facts about Parquet files, and Postgres CSV as Parquet.

arrow_types    Arrow types from their names, and rows cast to declared types
json_values    JSON values as the types that a dataset declares: exactly, or not at all
parquet_facts  what a manifest says about the columns of a Parquet file: the bounds of their values, and their nulls
plain_rows     Arrow tables from Python's rows and columns
postgres_csv   converts CSV that Postgres copied out to Parquet
row_filters    conditions on columns as Arrow expressions
"""
