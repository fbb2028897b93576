"""The command line: one file per group of commands. Talks to the gateway, except for what sets up or runs
the platform itself."""
