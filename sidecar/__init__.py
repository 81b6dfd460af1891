"""Engines that generate text beside the learner, and the protocol that they speak. Imports nothing of rljax."""
