"""Runs that go on from another model, and the gates that they must pass."""
