"""Aggregations of token losses by global counts: one a file, found by its registered name."""
