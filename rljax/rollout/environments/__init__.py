"""Environments of the explorer: where they compute, and what becomes of those that fail."""
