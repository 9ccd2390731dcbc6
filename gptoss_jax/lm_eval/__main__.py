"""lm_eval's command line with the model `gptoss-jax` in it: ``python -m gptoss_jax.lm_eval ARGUMENTS``."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs lm_eval. Returns 0; 2 for what the model refuses, which is one line on standard error; 130 if
    interrupted.
    """
    try:
        from lm_eval.__main__ import cli_evaluate

        from gptoss_jax.lm_eval.model import LikelihoodRefused
    except ImportError as error:
        return _fail(f"the package {error.name} is missing: pip install 'gptoss-jax[lm-eval]'")
    from checkpoints.config import CheckpointError
    from gptoss_jax.engine.memory import EngineMemoryError
    from gptoss_jax.engine.request import RequestError
    from gptoss_jax.sizes import ShardingError
    from pallas_kernels.platform import PlatformError

    try:
        cli_evaluate()
    except (
        CheckpointError,
        EngineMemoryError,
        LikelihoodRefused,
        PlatformError,
        RequestError,
        ShardingError,
    ) as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(reason: object, code: int = 2) -> int:
    print(f"gptoss-jax: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
