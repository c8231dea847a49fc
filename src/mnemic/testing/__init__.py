"""The contract of a back-end as a pytest suite, for built-in and third-party back-ends.

`pytest --pyargs mnemic.testing` runs it over every installed back-end with a `Backend.trial`; `-k NAME` selects
one by its URL scheme. It needs `mnemic[testing]`.
"""

__all__: list[str] = []
