"""vLLM engines behind the protocol. Imports vLLM, and with it torch, only when an engine is opened."""
