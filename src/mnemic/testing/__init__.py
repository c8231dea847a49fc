"""The contract of a back-end as a pytest suite, for built-in and third-party back-ends.

    pip install 'mnemic[testing]'
    MNEMIC_TEST_URL='mystore://localhost/{name}' pytest --pyargs mnemic.testing

See `mnemic.testing.harness` for other ways to name the stores to test.
"""

from .harness import Target

__all__ = ["Target"]
