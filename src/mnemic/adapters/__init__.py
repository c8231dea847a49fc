"""The memory interfaces of agent frameworks, one module each; importing one needs its framework."""
