"""The command line: one file per group of commands, with names by `grammar`. Commands talk to the gateway, except those
that set up or run the platform itself.

    admin         commands that set up a platform and rotate its secrets
    alerts        `traceplane alert`
    audit         `traceplane audit`
    backfill      `traceplane backfill`
    browser       whether there is one, and what shows it a page
    channels      `traceplane channel`
    completion    `traceplane completion`: what a shell needs to complete commands and options
    coverage      what a dataset holds: its positions, its gaps and their reasons, as text
    cron          when cron sources fire, as text
    dead_letters  `traceplane dead-letter`
    deploys       `traceplane dag`: commands that deploy DAGs and choose which version of them serves
    dev           `traceplane dev`: `up`, and the files of a folder, deployed whenever they are saved
    doctor        `traceplane doctor` and `traceplane trigger doctor`: what is wrong, and what to do
    effects       `traceplane event list` and `traceplane event effects`: events, and all that one of them caused
    events        `traceplane event`, `traceplane file` and `traceplane webhook`
    failures      what went wrong, as text: failed and stuck work, and everything known about one task
    jobs          commands for jobs and their batches
    grammar       nouns, verbs, short names, plurals
    main          `traceplane`, alias `tp`: its commands and how it reports errors
    messages      `traceplane message`
    spark         `traceplane spark jars`
    operators     `traceplane operator`
    output        where every command writes, so that nothing reaches a terminal unescaped
    people        commands for members of an organization, their roles and their tokens
    pipelines     commands for pipelines, scanner lists and executions
    preflight     what `traceplane up` checks before it starts anything
    profile       the local profile: embedded Postgres, migrations, and tokens in files under the home folder
    project       `traceplane init`: a folder to begin with
    queries       commands that read data
    scopes        parses scopes and ranges from the command line
    secrets       `traceplane secret`
    services      commands that run the platform: `up`, and each process alone
    sign_in       `traceplane login`, `traceplane logout` and `traceplane provider`
    start         where `traceplane` begins: quiet if it is interrupted while it imports the rest
    supervisor    runs the processes of `traceplane up`
    tasks         commands for tasks and the status of the platform
    top           `traceplane top`: what the platform does now
    trigger       commands of the trigger
    whereabouts   calls to a platform: which one it is, and what to print if it is unreachable
"""
