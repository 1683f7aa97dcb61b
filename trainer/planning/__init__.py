"""Before a run: memory, time and compute, and where a loss is heading."""
