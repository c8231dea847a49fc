"""Memory for AI agents."""
