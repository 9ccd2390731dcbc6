"""The constant of gpt-oss's clamped SwiGLU, in a module that imports nothing."""

SWIGLU_ALPHA = 1.702
"""α in gate · sigmoid(α · gate) · (up + 1), as published."""
