"""A model elsewhere: another format, text."""
