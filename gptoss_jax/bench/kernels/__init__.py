"""The GPU kernels checked against their references and timed, in one run."""
