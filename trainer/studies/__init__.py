"""Small runs that teach about training, and steps of a finished run looked at again."""
