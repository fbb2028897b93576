"""Rows in columns: Arrow's types by name, what Parquet files hold, and Postgres' CSV as Parquet.

arrow_types    Arrow types from their names, and rows cast to declared types
parquet_facts  what a manifest tells of a Parquet file: its columns, and the bounds of their values
postgres_csv   rows as Postgres copies them out, in CSV, become Parquet
"""
