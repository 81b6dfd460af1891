"""An engine around any model that samples in steps: its thread, its queue of requests, the protocol. No model here."""
