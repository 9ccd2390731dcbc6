"""How far the engine's log-probabilities are from those that are right, and how far rounding takes them.

At each place of a completion the engine lists its 20 likeliest tokens. The distance at that place is the root
mean square of their log-probabilities' differences, in nats. Each token that is drawn becomes part of what is
computed next, so the comparison ends behind the first token that differs.

The bounds come from a measurement: the same numbers in bfloat16, from an implementation that is right, are
at the distance d. Small errors grow through the layers in proportion. So what is served in bfloat16 is
expected at d, too, and `ROOM` times as much is allowed. In float32 a rounding is 2^-16 of one in bfloat16.
But there every addition of a sum rounds as operands do, while sums of bfloat16 products are added in float32:
for sums of n terms that is the root of n times as much, in the usual case.

In bfloat16 a token at which two experts nearly tie may go to the other one, and its place is then far off, in
what is right as well. So the median of the places is judged, not the worst one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gptoss_jax.engine import Completion

ROOM = 2.0
"""How many times the expected distance is allowed."""

FLOAT32_SHARE = 2.0**-16
"""The size of a rounding error in float32 over one in bfloat16."""


@dataclasses.dataclass(frozen=True)
class Right:
    """What is right at the N places of a completion.

    tokens: what follows. ids: int [N, any], tokens whose log-probabilities are known, best first. logprobs,
    coarse: float [N, any], theirs in float32 and in bfloat16. Tokens that are not listed are less likely than
    the last one that is.
    """

    tokens: Sequence[int]
    ids: np.ndarray
    logprobs: np.ndarray
    coarse: np.ndarray


def distances(completion: Completion, right: Right) -> list[float]:
    """The distance at each place, in nats, up to the first token that differs; one of NaN is infinite."""
    found = []
    places = zip(completion.logprobs or (), completion.tokens, right.tokens, strict=False)
    for place, (listed, drawn, expected) in enumerate(places):
        known = dict(zip(right.ids[place].tolist(), right.logprobs[place].tolist(), strict=True))
        least = float(right.logprobs[place, -1])
        differences = np.array([value - known.get(token, least) for token, value in listed.top])
        distance = float(np.sqrt(np.mean(np.square(differences)))) if len(differences) else np.inf
        found.append(distance if np.isfinite(distance) else np.inf)
        if drawn != expected:
            break
    return found


def noise(rights: Sequence[Right], listed: int = 20) -> float:
    """The median distance, in nats, of bfloat16 from float32 in an implementation that is right."""
    each = [
        np.sqrt(np.mean(np.square(one.coarse[:, :listed] - one.logprobs[:, :listed]), axis=-1))
        for one in rights
    ]
    return float(np.median(np.concatenate(each)))


def allowed(rights: Sequence[Right], dtype: str, terms: int) -> float:
    """The largest median distance, in nats, that rounding explains.

    dtype: what products are rounded to. terms: of the longest sum in the model.
    """
    return ROOM * noise(rights) * (FLOAT32_SHARE * math.sqrt(terms) if dtype == "float32" else 1.0)
