"""Kernels for gpt-oss: one folder per operation, each with its plain JAX oracle, and the MXFP4 format."""
