"""mem0's operations over the memories of scopes, for its HTTP API and its Python API."""
