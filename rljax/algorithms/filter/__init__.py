"""Filters of scored groups: one a file, found by its registered name."""
