"""Process lifecycle, working folders, retries, and transactions that calls share.

group_commit      concurrent calls share one transaction
in_parallel       many calls of one kind, a few at a time
locked_folder     the working folder of one process, and cleanup of folders whose process was killed
process           process lifecycle: background loops, tasks that live and die together, graceful shutdown
retrying          retries with exponential backoff and jitter
running_platform  whether the platform of a home folder runs, and the token of that folder
uv_command        how uv, the installer of Python packages, is called
"""
