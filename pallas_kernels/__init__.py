"""Kernels for gpt-oss, one folder per operation, each with its
reference in plain JAX; and the MXFP4 format.
"""
