"""Measurements. Each is an experiment: arms side by side in one process, values checked before any clock starts."""
