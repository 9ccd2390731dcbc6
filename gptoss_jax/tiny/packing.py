"""Rows of tokens for training: each row holds a shared prefix and several branches that continue it."""

from __future__ import annotations

import dataclasses
import itertools
import random

import jax
import numpy as np
import numpy.typing as npt

from gptoss_jax.tiny import sums
from gptoss_jax.tiny.dialogues import EFFORTS, Group, Turn, draw_group
from gptoss_jax.tiny.splits import Split
from harmony import Conversation, HarmonyEncoding

DRILL_SHARE = 0.2
"""Fraction of rows that hold nothing but worked sums, which teach many digits per token."""
TRAINED_SHARE = 0.65
"""The largest fraction of a batch's tokens to train on. About half of them are, so few are left out."""
IntArray = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokens, and for each of them True if the model is trained to predict it."""

    ids: list[int]
    trained: list[bool]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Packed rows.

    tokens: int32 [B, T].
    positions: int32 [B, T]; in every branch they continue after the prefix.
    segments: int32 [B, T], 0 on the prefix, n on branch n, -1 on padding.
    predictors: int32 [N], indices into the flattened tokens: where the next token is predicted.
    targets: int32 [N], the tokens to predict there.
    weights: float32 [N], 1, or 0 for padding.
    """

    tokens: IntArray
    positions: IntArray
    segments: IntArray
    predictors: IntArray
    targets: IntArray
    weights: npt.NDArray[np.float32]


def branch_tokens(encoding: HarmonyEncoding, turns: list[Turn]) -> Tokens:
    """A branch as tokens. Only the assistant's messages are trained on; a turn ends in a stop token."""
    (returned,) = encoding.encode("<|return|>", allowed_special="all")
    (ended,) = encoding.encode("<|end|>", allowed_special="all")
    opening = len(encoding.encode("<|start|>assistant", allowed_special="all"))
    ids: list[int] = []
    trained: list[bool] = []
    for turn in turns:
        for message in turn.given:
            rendered = encoding.render(message)
            ids += rendered
            trained += [False] * len(rendered)
        said = [token for message in turn.completion for token in encoding.render(message)]
        if not turn.past and said[-1] == ended:
            said[-1] = returned
        ids += said
        trained += [not turn.past and i >= opening for i in range(len(said))]
    return Tokens(ids, trained)


def group_tokens(encoding: HarmonyEncoding, group: Group) -> tuple[list[int], list[Tokens]]:
    """The prefix and the branches of a group."""
    prefix = encoding.render_conversation(Conversation.from_messages(group.setting.messages))
    return list(prefix), [branch_tokens(encoding, turns) for turns in group.branches]


def drill_tokens(encoding: HarmonyEncoding, rng: random.Random) -> tuple[list[int], list[Tokens]]:
    """Thirty worked sums at one effort, each in a chain of thought. Their operands are not trained on."""
    prefix = encoding.encode("<|start|>assistant<|channel|>analysis<|message|>", allowed_special="all")
    effort = rng.choice(["low", *EFFORTS])
    branches = []
    for _ in range(30):
        problem = sums.draw(rng, Split.TRAINING)
        work = sums.worked(problem, effort)
        given = len({"low": "000+000:", "medium": "000 + 000. ", "high": "000 + 000. Ones:"}[effort])
        head = encoding.encode(work[:given])
        rest = encoding.encode(work[given:]) + encoding.encode("<|end|>", allowed_special="all")
        branches.append(Tokens(head + rest, [False] * len(head) + [True] * len(rest)))
    return list(prefix), branches


def pack_row(prefix: list[int], branches: list[Tokens], length: int) -> list[list[int]] | None:
    """Fills one row with the prefix and as many branches as fit, in order; None if no branch fits.

    Returns tokens, positions, segments, targets and weights, each of `length`.
    """
    tokens, positions = list(prefix), list(range(len(prefix)))
    segments, trained = [0] * len(prefix), [False] * len(prefix)
    count = 0
    for branch in branches:
        if len(tokens) + len(branch.ids) > length:
            continue
        count += 1
        tokens += branch.ids
        trained += branch.trained
        segments += [count] * len(branch.ids)
        positions += range(len(prefix), len(prefix) + len(branch.ids))
    if not count:
        return None
    padding = length - len(tokens)
    same = [a == b for a, b in itertools.pairwise(segments)] + [False]
    weights = [int(t and s) for t, s in zip([*trained[1:], False], same, strict=True)]
    filler = [0] * padding
    return [
        tokens + filler,
        positions + filler,
        segments + [-1] * padding,
        [*tokens[1:], 0, *filler],
        weights + filler,
    ]


def draw_batch(encoding: HarmonyEncoding, seed: int, step: int, rows: int, length: int) -> Batch:
    """The batch of one step. It depends on the seed and the step alone."""
    rng = random.Random(f"{seed}/{step}")
    packed: list[list[list[int]]] = []
    while len(packed) < rows:
        if rng.random() < DRILL_SHARE:
            prefix, branches = drill_tokens(encoding, rng)
        else:
            prefix, branches = group_tokens(encoding, draw_group(rng))
        row = pack_row(prefix, branches, length)
        if row is not None:
            packed.append(row)
    tokens, positions, segments, targets, weights = (
        np.array(column, np.int32) for column in zip(*packed, strict=True)
    )
    size = int(TRAINED_SHARE * tokens.size)
    trained = np.flatnonzero(weights)[:size]
    padding = (0, size - len(trained))
    return Batch(
        tokens,
        positions,
        segments,
        np.pad(trained, padding).astype(np.int32),
        np.pad(targets.reshape(-1)[trained], padding),
        np.pad(np.ones(len(trained), np.float32), padding),
    )
