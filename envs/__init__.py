"""Text environments. None yet: they come with the agentic pipeline."""
