"""Environments of the explorer: where they run, and how their failures are handled."""
