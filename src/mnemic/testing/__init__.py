"""The contract of a back-end as a pytest suite, for built-in and third-party back-ends.

    pip install 'mnemic[testing]'
    MNEMIC_TEST_URL='mystore://localhost/{name}' pytest --pyargs mnemic.testing

See `mnemic.testing.targets` for other ways to name the stores to test.
"""

from .targets import Target

__all__ = ["Target"]
