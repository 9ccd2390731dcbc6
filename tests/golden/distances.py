"""How far logits are from the oracle's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TOLERANCE = 1e-5
"""What float32 may differ by, as a `relative_difference`."""

BFLOAT16_FACTOR = 1.5
"""How many times as far as the oracle's own bfloat16 ours may be from the oracle's float32."""


def relative_difference(ours: npt.ArrayLike, oracle: npt.ArrayLike) -> float:
    """The largest difference of two arrays over the second one's largest magnitude."""
    ours, oracle = np.asarray(ours, np.float64), np.asarray(oracle, np.float64)
    assert ours.shape == oracle.shape
    return float(np.abs(ours - oracle).max() / np.abs(oracle).max())


def rms_distance(ours: npt.ArrayLike, oracle: npt.ArrayLike) -> float:
    """The root mean square of the difference over that of the second array.

    In bfloat16 a token at which two experts nearly tie may go to the other one, in either implementation, and
    its logits then differ by a third: so a single prompt's distance is partly luck, and the live comparison
    takes many.
    """
    ours, oracle = np.asarray(ours, np.float64), np.asarray(oracle, np.float64)
    assert ours.shape == oracle.shape
    return float(np.linalg.norm(ours - oracle) / np.linalg.norm(oracle))
