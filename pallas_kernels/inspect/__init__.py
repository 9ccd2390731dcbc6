"""The schedule inspector: what the TPU compiler makes of each kernel, counted on a machine without a TPU.

`python -m pallas_kernels.inspect --chip v5e` compiles every registered case ahead of time with the real TPU
compiler (the package libtpu), reads the instruction bundles that it scheduled, executes the scalar part of
them, and reports compute cycles beside the cycles that the memory needs. See `counting` for what is and is
not counted.
"""
