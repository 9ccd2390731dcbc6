"""Benchmarks of the engine: its throughput, and the gain of each of its optimizations."""
