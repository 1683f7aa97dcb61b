"""Sections of a report, a module each; `section` makes the elements below its heading."""
