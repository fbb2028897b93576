"""The command line: one file per group of commands. Talks to the gateway, except for what sets up or runs
the platform itself.

    admin        commands that set up a platform and rotate its secrets
    control      commands for people who deploy DAGs and look after tasks
    coverage     which positions there are, and why some are not, for people
    doctor       `traceplane trigger doctor`
    failures     what went wrong, in lines for people: failed and stuck work, and all that is known of one task
    main         `traceplane`, alias `tp`
    output       where every command writes, so that nothing reaches a terminal unescaped
    pipelines    commands for people who own pipelines
    preflight    what `traceplane up` makes sure of before it starts anything
    profile      the local profile: embedded Postgres, migrations, and tokens in files under the home folder
    queries      commands for people who look at data
    services     commands that run the platform: `up`, and each process alone
    supervisor   runs the processes of `traceplane up`
    trigger      commands of the trigger
    whereabouts  which platform a command talks to, and what to say when it is not there
"""
