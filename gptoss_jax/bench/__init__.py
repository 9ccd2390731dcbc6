"""Measurements: what is compared, how it is timed, and how the outcome is printed."""
