"""Real servers for the contract suite, from packages: one of each, on loopback, stopped with the process."""
