"""Commands of the trainer and their options."""
