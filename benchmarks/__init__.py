"""Measurements, each printed as a ratio against a baseline that is measured in the same run."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path += [str(TESTS), str(TESTS / "adapters")]  # the servers of the tests, and the environments of the frameworks
