"""Advantages of turns: one function a file, found by its registered name."""
