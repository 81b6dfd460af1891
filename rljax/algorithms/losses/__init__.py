"""Policy losses: one formula a file, found by its registered name."""
