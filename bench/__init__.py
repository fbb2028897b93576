"""Side-by-side measurements of Traceplane and its peers: `python -m bench.run SUITE`."""
