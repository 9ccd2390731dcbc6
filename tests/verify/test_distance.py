"""What the distance of log-probabilities makes of right and wrong completions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine import Completion, TokenLogprobs
from gptoss_jax.verify.distance import Right, allowed, distances, noise
from gptoss_jax.verify.golden import golden
from gptoss_jax.verify.logits import judge

CONFIG = open_checkpoint("tiny").config
ANSWER = golden().answers[0]
RIGHT = Right(ANSWER.tokens, ANSWER.ids, ANSWER.logprobs, ANSWER.coarse)


def completion(values: np.ndarray = ANSWER.logprobs, tokens: list[int] = ANSWER.tokens) -> Completion:
    """A completion with these log-probabilities of the stored tokens."""
    listed = tuple(
        TokenLogprobs(float(row[0]), tuple(zip(ids[:20].tolist(), row[:20].tolist(), strict=True)))
        for ids, row in zip(ANSWER.ids, values, strict=True)
    )
    return Completion("verify-0", tokens, "length", len(ANSWER.prompt), logprobs=listed)


def test_what_is_stored_passes_in_both_dtypes() -> None:
    for dtype in ("float32", "bfloat16"):
        assert judge([completion()], [RIGHT], dtype, CONFIG).passed
    assert judge([completion(ANSWER.coarse)], [RIGHT], "bfloat16", CONFIG).passed
    assert judge([completion(ANSWER.coarse)], [RIGHT], "float32", CONFIG).passed is False


def test_differences_beyond_the_bound_fail_and_nan_does() -> None:
    bound = allowed([RIGHT], "float32", 128)
    assert bound == pytest.approx(2 * noise([RIGHT]) * math.sqrt(128) / 65536)
    wide = ANSWER.logprobs.astype(np.float64)
    assert judge([completion(wide + 0.9 * bound)], [RIGHT], "float32", CONFIG).passed
    assert judge([completion(wide + 1.1 * bound)], [RIGHT], "float32", CONFIG).passed is False
    assert judge([completion(wide * np.nan)], [RIGHT], "bfloat16", CONFIG).passed is False


def test_the_comparison_ends_behind_the_first_token_that_differs() -> None:
    other = [*ANSWER.tokens[:3], ANSWER.tokens[3] + 1, *ANSWER.tokens[4:]]
    assert len(distances(completion(tokens=other), RIGHT)) == 4
    assert judge([completion(tokens=other)], [RIGHT], "float32", CONFIG).details["same_completions"] == 0


def test_tokens_that_are_not_stored_count_as_far_off() -> None:
    elsewhere = dataclasses.replace(RIGHT, ids=RIGHT.ids + 5000)
    assert min(distances(completion(), elsewhere)) > 1
