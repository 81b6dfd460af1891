"""The files of the two ancestors: YAML of ROLL and Trinity-RFT becomes a config of ours, key by key."""
