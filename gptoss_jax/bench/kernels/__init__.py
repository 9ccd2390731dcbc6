"""Checks the GPU kernels against their references and times them, in one run."""
