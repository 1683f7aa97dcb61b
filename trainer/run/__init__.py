"""A training run: what it is made of, its steps and its end."""
