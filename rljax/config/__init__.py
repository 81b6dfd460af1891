"""The config of a run: schema, rules, and the ways in from files and the command line.

Importing any part of it brings the rules along, so that no config is made without them (promise P9).
"""

from rljax.config import rules as rules
