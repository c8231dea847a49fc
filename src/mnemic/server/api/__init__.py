"""The endpoints under /api/v1: one module per noun of the library."""
