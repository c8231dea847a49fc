"""Where records are kept: one room per engine, found by entry point and never imported by name."""
