"""Guarantee 9: operator code cannot reach /internal/*, other tasks' data, or platform secrets.

Every attack of `hostile_operators` runs beside an innocent task, which must not notice. Where an attack looks for
something, a control first shows that it is there to be found without the sandbox.

The files run once with every layer of isolation this machine has. `test_ways_of_confining` then runs them again in
processes of their own: as an unprivileged user, and with only some of the layers, as on an older kernel or in a
container.
"""
