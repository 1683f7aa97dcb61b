"""A training run: its parts, its optimiser and schedule, its steps and what is measured in them, what it says of itself."""
