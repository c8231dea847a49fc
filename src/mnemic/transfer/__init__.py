"""Foreign formats: reads and writes the conversations and memories of other tools."""
