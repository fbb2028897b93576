"""Secrets: values that jobs receive when they start, and that nobody can read back.

references   how configs and jobs refer to secrets, and how the references are replaced by values
sealing      values sealed with keys of their own, and those with a master key that can be replaced
vault        secrets in Postgres: set, listed, handed out, and sealed anew
"""
