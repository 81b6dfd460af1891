"""Advantages of tokens: one function a file, found by its registered name."""
