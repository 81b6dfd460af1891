"""An engine around anything that samples in steps: the thread, the waiting line, and the protocol. No model here."""
