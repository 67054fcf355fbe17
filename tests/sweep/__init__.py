"""The exhaustive tests, in slices: ``python -m tests.sweep``."""
