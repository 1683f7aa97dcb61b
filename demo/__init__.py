"""A corpus from this machine's own Python documentation, and a small model trained on it: `make demo`."""
