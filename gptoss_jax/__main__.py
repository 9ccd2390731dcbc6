"""`python -m gptoss_jax`: the command line."""

import sys

from gptoss_jax.cli import main

sys.exit(main())
