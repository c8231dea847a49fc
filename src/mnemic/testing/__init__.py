"""The contract of a store as a pytest suite, for back-ends of ours and of others.

`pytest --pyargs mnemic.testing` runs it over every installed back-end whose entry point says how to
try it (`Backend.trial`); `-k NAME` picks one by its URL scheme. It needs `mnemic[testing]`.
"""

__all__: list[str] = []
