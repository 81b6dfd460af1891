"""Advantages: one function a file, found by its registered name."""
