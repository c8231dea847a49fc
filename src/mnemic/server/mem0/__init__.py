"""mem0's REST API, of its own server and of its platform, over the memories of scopes."""
