"""The constants of the MXFP4 format (OCP Microscaling Formats specification 1.0, sections 5.3 and 5.4)."""

BLOCK_SIZE = 32
"""Weights that share one scale."""

SCALE_BIAS = 127
"""A scale byte s stands for 2^(s - 127)."""

CODE_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each of the 16 codes before scaling."""

LAYOUT_VERSION = 1
"""The version of the expert weights' layout, which converted checkpoints record.

1: blocks uint8 [..., rows, K/2] and scales uint8 [..., rows, K/32], rows are outputs, bytes as published.
"""
