"""A YAML file of Trinity-RFT's as it is, or its pair of explorer and trainer, which run in one process then.

    python -m rljax.main --config=trinity:explorer.yaml,trainer.yaml
    python -m rljax.main --config=trinity:trainer.yaml     # or each in a shell of its own,
    python -m rljax.main --config=trinity:explorer.yaml    # in any order

The same as --config=FILE.yaml, for a file that is not told by its keys. docs/from_trinity.md has each key and ours.
"""

from rljax.config.fields import ConfigError
from rljax.config.importers.translate import TRINITY, translate
from rljax.config.importers.translation import Translation


def get_config(arg: str = "") -> Translation:
    if not arg:
        raise ConfigError("names no file; write --config=trinity:FILE.yaml, or trinity:EXPLORER.yaml,TRAINER.yaml")
    return translate(arg, TRINITY)
