"""Evaluations that run straight through the engine."""
