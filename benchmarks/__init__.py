"""Measurements, each printed as a ratio against a baseline that is measured in the same run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the servers of the tests
