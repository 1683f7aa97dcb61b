"""Before a run: memory, time, compute, and where a loss is heading."""
