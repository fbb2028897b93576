"""Secrets: values that jobs receive when they start, and that nobody can read back.

own_settings   secrets that the platform's own settings refer to
references     how configs and jobs refer to secrets, and how the references are replaced by values
sealed_store   values in Postgres, sealed; other stores are adapters
sealing        values sealed with keys of their own, and those with a master key that can be replaced
vault          secrets: set, listed, removed, and handed out to the jobs that may have them
"""
