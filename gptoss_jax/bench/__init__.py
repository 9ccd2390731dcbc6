"""Benchmarks: comparisons, timing, and printed results."""
