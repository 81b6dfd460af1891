"""Tasksets, prompt templates and rewards. Nothing here imports jax."""
