"""Measurements, each printed as a ratio against a baseline that is measured in the same run."""
