"""`python -m pallas_kernels.inspect [--chip v5e] [--kernel TEXT] [--json]`; see the package's docstring."""

import os
import sys

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = (
        "cpu"  # before jax is imported: no device is wanted, even where there is one
    )
    from pallas_kernels.inspect.command import main

    sys.exit(main())
