"""Real servers for the contract suite, from packages: one of each, on loopback, ended with the process."""
