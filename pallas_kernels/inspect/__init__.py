"""The schedule inspector counts the cycles of the compiled TPU kernels, on a machine without a TPU.

`python -m pallas_kernels.inspect --chip v5e` compiles every registered case ahead of time with the real TPU
compiler (the package libtpu), reads the instruction bundles that it scheduled, executes their scalar part,
and reports compute cycles and memory cycles. `counting` says what is counted and what is not.
"""
