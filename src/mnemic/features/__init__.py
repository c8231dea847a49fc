"""Features, each written once, over records."""
