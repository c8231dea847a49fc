"""What people do with memory, each written once, over records."""
