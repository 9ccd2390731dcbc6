"""Measures a server over HTTP, beside the engine alone."""
