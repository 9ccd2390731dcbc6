"""Draws the next token of every row, on the device.

The functions need no communication between devices and run inside a compiled loop. A stage that no row uses
is skipped, and a row that does not use a stage passes through it unchanged. So a row's draw depends only on
its own logits, settings and random numbers: not on its index, the other rows, their number, or the padding
of the vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array | np.ndarray

MAX_BIASED = 300
MAX_BANNED = 40  # 16 stop tokens of the engine, 16 of the request, and the ends of messages
MAX_TOP = 20

_IN_PROMPT = np.uint16(1 << 15)
_MAX_COUNTED = np.uint16((1 << 15) - 1)

# A request's settings may be any finite float64. Within these bounds no sum, product or quotient of logits
# and settings overflows float32. Useful settings lie far inside them.
_LARGEST = 1e25
_MIN_TEMPERATURE = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samplers:
    """How each of B rows samples. The fields mean the same as in `SamplingParams`.

    seeds: uint32 [B, 2], the key of the row's random numbers.
    temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: float32 [B].
    top_k: int32 [B].
    bias_ids: int32 [B, 300], the ids of `logit_bias`, each id once; -1 for none.
    bias_values: float32 [B, 300], what is added to their logits.
    banned_ids: int32 [B, 40], tokens that are not drawn before the completion has `ban_until` tokens; -1 for
        none.
    ban_until: int32 [B].
    logprobs: bool [B], True to compute log-probabilities.
    """

    seeds: Array
    temperature: Array
    top_p: Array
    top_k: Array
    min_p: Array
    repetition_penalty: Array
    presence_penalty: Array
    frequency_penalty: Array
    bias_ids: Array
    bias_values: Array
    banned_ids: Array
    ban_until: Array
    logprobs: Array


def idle_samplers(count: int) -> Samplers:
    """Settings of `count` unused rows, as numpy arrays: temperature 0 and no other setting."""

    def filled(value: float, dtype: type[np.generic], *shape: int) -> np.ndarray:
        return np.full((count, *shape), value, dtype)

    return Samplers(
        seeds=filled(0, np.uint32, 2),
        temperature=filled(0, np.float32),
        top_p=filled(1, np.float32),
        top_k=filled(0, np.int32),
        min_p=filled(0, np.float32),
        repetition_penalty=filled(1, np.float32),
        presence_penalty=filled(0, np.float32),
        frequency_penalty=filled(0, np.float32),
        bias_ids=filled(-1, np.int32, MAX_BIASED),
        bias_values=filled(0, np.float32, MAX_BIASED),
        banned_ids=filled(-1, np.int32, MAX_BANNED),
        ban_until=filled(0, np.int32),
        logprobs=filled(False, np.bool_),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampledTokens:
    """What was drawn for each of B rows.

    tokens: int32 [B].
    logprobs: float32 [B], the tokens' log-probabilities.
    top_ids: int32 [B, 20], the likeliest tokens, best first.
    top_logprobs: float32 [B, 20], their log-probabilities.

    Log-probabilities are those of the logits before any setting is applied. In rows that do not want them,
    and where the vocabulary has fewer than 20 tokens, ids are -1 and log-probabilities 0.
    """

    tokens: jax.Array
    logprobs: jax.Array
    top_ids: jax.Array
    top_logprobs: jax.Array


@jax.named_scope("sample")
def sample(
    logits: jax.Array,
    samplers: Samplers,
    draws: jax.Array,
    counts: jax.Array,
    masks: jax.Array,
    masked: jax.Array,
    *,
    vocabulary: int,
) -> SampledTokens:
    """Draws the next token of every row.

    Args:
        logits: float32 [B, V]; ids from `vocabulary` on are padding, which is never drawn.
        samplers: the rows' settings.
        draws: int32 [B], how many tokens each row's completion has.
        counts: uint16 [B, V], each row's token counts (see `count_tokens`); only the penalties use them.
        masks: uint32 [B, ceil(V / 32)], the tokens that a grammar allows: bit id % 32 of word id // 32.
        masked: bool [B], True for rows whose mask applies.
        vocabulary: the number of tokens without padding.

    The stages are applied in this order: penalties, bias, bans, temperature, top-k, top-p of what that
    leaves, min-p, mask. A row with a temperature takes the largest of logit / temperature + noise. The noise
    is a function of the row's seed, `draws` and the token alone. So if a draw without the mask is a token
    that the mask allows, the draw with the mask is the same token. If the mask allows none of the tokens that
    top-k, top-p and min-p keep, these choose among the allowed tokens instead; if all of those are banned,
    the ban is ignored.
    """
    # The padding is cut off here, so that every number is what it would be without padding.
    logits, counts, masks = logits[:, :vocabulary], counts[:, :vocabulary], masks[:, : -(-vocabulary // 32)]
    draws, masked = jnp.asarray(draws), jnp.asarray(masked)
    samplers = _bounded(samplers)
    penalised = samplers.repetition_penalty != 1
    penalised |= (samplers.presence_penalty != 0) | (samplers.frequency_penalty != 0)
    biased = (samplers.bias_ids >= 0).any(-1)
    banned = (samplers.banned_ids >= 0).any(-1) & (draws < samplers.ban_until)
    limited = (samplers.top_k > 0) | (samplers.top_p < 1) | (samplers.min_p > 0)
    limited &= samplers.temperature > 0

    def choices(logits: jax.Array) -> jax.Array:
        wanted = _change(penalised, logits, lambda x: _penalise(x, samplers, counts))
        wanted = _change(biased, wanted, lambda x: _bias(x, samplers))
        unbanned = _change(banned, wanted, lambda x: _ban(x, samplers))
        kept = _change(limited, unbanned, lambda x: _limit(x, samplers))

        def mask(kept: jax.Array) -> jax.Array:
            allowed = _unpack(masks, vocabulary)

            def limit_allowed(lost: jax.Array) -> jax.Array:
                rest = jnp.where(allowed, unbanned, -jnp.inf)
                rest = jnp.where(_any_left(rest)[:, None], rest, jnp.where(allowed, wanted, -jnp.inf))
                return _change(limited, rest, lambda x: _limit(x, samplers))

            met = jnp.where(allowed, kept, -jnp.inf)
            return _change(masked & ~_any_left(met), met, limit_allowed)

        return _change(masked, kept, mask)

    def pick(choices: jax.Array) -> jax.Array:
        return _pick(choices, samplers, draws)

    # One condition about all of these: a batch of nothing but temperatures then copies no logits.
    special = penalised | biased | banned | limited | masked
    tokens = lax.cond(special.any(), lambda x: pick(choices(x)), pick, logits)
    return _describe(logits, tokens, samplers.logprobs)


def count_tokens(counts: jax.Array, tokens: jax.Array, active: jax.Array) -> jax.Array:
    """Returns the counts with `tokens` (int32 [B]) added in the rows that are `active` (bool [B]).

    counts: uint16 [B, V]. Bits 0 to 14 are how often the token occurs in the row's completion, at most
    32,767; bit 15 is set if it occurs in the row's prompt.
    """
    rows = jnp.arange(counts.shape[0])
    before = counts[rows, jnp.where(active, tokens, 0)]
    after = before + ((before & _MAX_COUNTED) < _MAX_COUNTED).astype(counts.dtype)
    return counts.at[rows, jnp.where(active, tokens, counts.shape[1])].set(after, mode="drop")


def count_prompt(counts: jax.Array, row: jax.Array, prompt: jax.Array, completion: jax.Array) -> jax.Array:
    """Returns the counts (uint16 [B, V]) with one row replaced by the counts of a prompt and a completion.

    row: int32 []; a row outside 0 … B - 1 changes nothing.
    prompt, completion: int32 [L], each of any length; -1 is padding.
    """
    size, vocabulary = counts.shape

    def places(tokens: jax.Array) -> jax.Array:
        return jnp.where(tokens < 0, vocabulary, tokens)

    completed = jnp.zeros(vocabulary, jnp.uint32).at[places(completion)].add(1, mode="drop")
    completed = jnp.minimum(completed, _MAX_COUNTED).astype(counts.dtype)
    marked = jnp.zeros_like(completed).at[places(prompt)].set(_IN_PROMPT, mode="drop")
    return counts.at[jnp.where(row < 0, size, row)].set(completed | marked, mode="drop")


def _bounded(samplers: Samplers) -> Samplers:
    """The samplers as jax arrays, their numbers clipped to bounds within which float32 does not overflow."""
    temperature = jnp.asarray(samplers.temperature)
    within = jnp.clip(temperature, _MIN_TEMPERATURE, _LARGEST)
    return dataclasses.replace(
        jax.tree.map(jnp.asarray, samplers),
        temperature=jnp.where(temperature > 0, within, 0.0),
        repetition_penalty=jnp.clip(samplers.repetition_penalty, 1 / _LARGEST, _LARGEST),
        presence_penalty=jnp.clip(samplers.presence_penalty, -_LARGEST, _LARGEST),
        frequency_penalty=jnp.clip(samplers.frequency_penalty, -_LARGEST, _LARGEST),
        bias_values=jnp.clip(samplers.bias_values, -_LARGEST, _LARGEST),
    )


def _change(rows: Array, values: jax.Array, change: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """`values` [B, V] with `change` applied to `rows` (bool [B]); skipped if no row is set."""
    return lax.cond(rows.any(), lambda x: jnp.where(rows[:, None], change(x), x), lambda x: x, values)


def _any_left(logits: jax.Array) -> jax.Array:
    return (logits > -jnp.inf).any(-1)


def _penalise(logits: jax.Array, samplers: Samplers, counts: jax.Array) -> jax.Array:
    """Logits after the penalties, of every row."""
    repetition, presence, frequency = (
        x[:, None]
        for x in (samplers.repetition_penalty, samplers.presence_penalty, samplers.frequency_penalty)
    )
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    completed = (counts & _MAX_COUNTED).astype(jnp.float32)
    logits = jnp.where(counts > 0, repeated, logits)
    return logits - presence * (completed > 0) - frequency * completed


def _bias(logits: jax.Array, samplers: Samplers) -> jax.Array:
    rows, columns = _places(samplers.bias_ids, logits)
    return logits.at[rows, columns].add(samplers.bias_values, mode="drop")


def _ban(logits: jax.Array, samplers: Samplers) -> jax.Array:
    rows, columns = _places(samplers.banned_ids, logits)
    return logits.at[rows, columns].set(-jnp.inf, mode="drop")


def _places(ids: Array, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices into logits [B, V] of the ids [B, N]. An id of -1 gives an index that an update drops."""
    return jnp.arange(ids.shape[0])[:, None], jnp.where(ids < 0, logits.shape[1], ids)


def _unpack(masks: jax.Array, vocabulary: int) -> jax.Array:
    """Masks uint32 [B, W] as bool [B, V]."""
    # A product with a matrix of ones and zeros spreads the sixteen bytes of 128 ids over 128 lanes. It is
    # exact in bfloat16. By the TPU compiler's estimate, repeating the words takes seven times as long.
    masks = jnp.pad(masks, ((0, 0), (0, -masks.shape[1] % 4)))
    octets = lax.bitcast_convert_type(masks, jnp.uint8).reshape(masks.shape[0], -1, 16)
    lanes = jnp.arange(128)
    spread = lanes // 8 == jnp.arange(16)[:, None]
    lined = (octets.astype(jnp.bfloat16) @ spread.astype(jnp.bfloat16)).astype(jnp.int32)
    return ((lined >> lanes % 8) & 1).reshape(masks.shape[0], -1)[:, :vocabulary] > 0


def _scaled(logits: jax.Array, samplers: Samplers) -> jax.Array:
    return logits / jnp.where(samplers.temperature > 0, samplers.temperature, 1.0)[:, None]


def _limit(logits: jax.Array, samplers: Samplers) -> jax.Array:
    """Logits [B, V] with -inf for tokens outside top-k, top-p and min-p. Among equals, lower ids are kept."""
    scaled = _scaled(logits, samplers)
    scaled = _change(samplers.top_k > 0, scaled, lambda x: _top_k(x, samplers.top_k))
    scaled = _change(samplers.top_p < 1, scaled, lambda x: _top_p(x, samplers.top_p))
    scaled = _change(samplers.min_p > 0, scaled, lambda x: _min_p(x, samplers.min_p))
    return jnp.where(scaled > -jnp.inf, logits, -jnp.inf)


def _top_k(scaled: jax.Array, top_k: Array) -> jax.Array:
    """Scaled logits [B, V] without those outside the `top_k` (int32 [B]) largest."""
    keys = _ordered(scaled)
    threshold = _threshold_key(keys, lambda within: within.sum(-1, dtype=jnp.int32) >= top_k, bits=2)
    above = (keys > threshold[:, None]).sum(-1, dtype=jnp.int32)
    return _keep(scaled, keys, threshold, top_k - above)


def _top_p(scaled: jax.Array, top_p: Array) -> jax.Array:
    """Scaled logits [B, V] of the fewest likeliest tokens whose probabilities reach `top_p` (float32 [B]).

    The probabilities are summed as integers, so the order of summation cannot change the result.
    """
    keys = _ordered(scaled)
    largest = scaled.max(-1, keepdims=True)
    shares = jnp.exp(scaled - jnp.where(largest > -jnp.inf, largest, 0.0))
    # Above 0, so that the likeliest token, whose share is 1, is always kept.
    wanted = jnp.maximum(top_p * _sum(shares), jnp.finfo(jnp.float32).tiny)
    threshold = _threshold_key(keys, lambda within: _sum(jnp.where(within, shares, 0.0)) >= wanted, bits=1)
    above = _sum(jnp.where(keys > threshold[:, None], shares, 0.0))
    share = jnp.where(keys == threshold[:, None], shares, 0.0).max(-1)
    room = jnp.clip(jnp.ceil((wanted - above) / share), 1, scaled.shape[1])
    return _keep(scaled, keys, threshold, room.astype(jnp.int32))


def _min_p(scaled: jax.Array, min_p: Array) -> jax.Array:
    """Scaled logits [B, V] without those less than `min_p` (float32 [B]) times as likely as the likeliest."""
    threshold = scaled.max(-1) + jnp.log(min_p)
    return jnp.where(scaled < threshold[:, None], -jnp.inf, scaled)


def _ordered(values: jax.Array) -> jax.Array:
    """Floats as uint32 keys in the same order; both zeros have the same key."""
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.uint32)
    sign = np.uint32(1 << 31)
    return jnp.where(bits < sign, bits | sign, ~bits)


def _threshold_key(keys: jax.Array, enough: Callable[[jax.Array], jax.Array], bits: int) -> jax.Array:
    """The largest uint32 [B] such that `enough` ([B, V] → bool [B]) holds for the keys [B, V] at or above it.

    It is searched from the highest bits down, `bits` at a time: exact, and without sorting.
    """

    def refine(step: jax.Array, threshold: jax.Array) -> jax.Array:
        shift = (32 - bits * (step + 1)).astype(jnp.uint32)
        tried = (threshold | np.uint32(digit) << shift for digit in range(1, 1 << bits))
        return threshold | sum(enough(keys >= x[:, None]).astype(jnp.uint32) for x in tried) << shift

    return lax.fori_loop(0, 32 // bits, refine, jnp.zeros(keys.shape[0], jnp.uint32))


def _keep(scaled: jax.Array, keys: jax.Array, threshold: jax.Array, room: Array) -> jax.Array:
    """Scaled logits [B, V] with a key above the threshold, and the first `room` (int32 [B]) of equal key."""
    tied = keys == threshold[:, None]
    crowded = tied.sum(-1, dtype=jnp.int32) > room
    first = _change(crowded, tied, lambda x: x & (jnp.cumsum(x, -1, dtype=jnp.int32) <= room[:, None]))
    return jnp.where((keys > threshold[:, None]) | first, scaled, -jnp.inf)


def _sum(shares: jax.Array) -> jax.Array:
    """Sums float32 [B] of shares [B, V] in 0 … 1, exactly the same in any order of summation.

    Each share is split into three digits, which are summed as integers. The base of the digits leaves room
    for the sum of V of them in an int32.
    """
    base = 2.0 ** (31 - shares.shape[1].bit_length())
    digits = []
    for _ in range(3):
        shares = shares * base
        digit = jnp.floor(shares)
        shares = shares - digit
        digits.append(digit.astype(jnp.int32).sum(-1, dtype=jnp.int32).astype(jnp.float32))
    return (digits[0] + (digits[1] + digits[2] / base) / base) / base


def _pick(choices: jax.Array, samplers: Samplers, draws: jax.Array) -> jax.Array:
    """Tokens int32 [B] from logits [B, V]: the likeliest, or one drawn at the row's temperature."""

    def draw(choices: jax.Array) -> jax.Array:
        keys = jax.random.wrap_key_data(jnp.asarray(samplers.seeds), impl="threefry2x32")
        noise = jax.vmap(
            lambda key, n: jax.random.gumbel(jax.random.fold_in(key, n), choices.shape[1:], choices.dtype)
        )(keys, draws)
        random = (samplers.temperature > 0)[:, None]
        return likeliest(jnp.where(random, noise + _scaled(choices, samplers), choices))

    def likeliest(scores: jax.Array) -> jax.Array:
        return jnp.argmax(scores, -1).astype(jnp.int32)

    return lax.cond((samplers.temperature > 0).any(), draw, likeliest, choices)


def _describe(logits: jax.Array, tokens: jax.Array, wanted: Array) -> SampledTokens:
    """The tokens [B] with their log-probabilities and the likeliest tokens, for rows that are `wanted`."""
    count, vocabulary = logits.shape
    listed = min(MAX_TOP, vocabulary)

    def describe() -> SampledTokens:
        largest = logits.max(-1, keepdims=True)
        total = largest + jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
        ids = jnp.arange(vocabulary)

        def next_best(
            last: tuple[jax.Array, jax.Array], _: None
        ) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
            value, token = (x[:, None] for x in last)
            later = (logits < value) | ((logits == value) & (ids > token))
            # Logits of -inf rank below all others, but above the tokens that are listed already.
            ranked = jnp.where(later, jnp.maximum(logits, jnp.finfo(jnp.float32).min), -jnp.inf)
            best = jnp.argmax(ranked, -1).astype(jnp.int32)
            last = _at(logits, best), best
            return last, last

        start = jnp.full(count, jnp.inf), jnp.full(count, -1, jnp.int32)
        _, (values, best) = lax.scan(next_best, start, length=listed)
        spare = ((0, 0), (0, MAX_TOP - listed))
        return SampledTokens(
            tokens=tokens,
            logprobs=jnp.where(wanted, _at(logits, tokens) - total[:, 0], 0.0),
            top_ids=jnp.pad(jnp.where(wanted[:, None], best.T, -1), spare, constant_values=-1),
            top_logprobs=jnp.pad(jnp.where(wanted[:, None], values.T - total, 0.0), spare),
        )

    def silent() -> SampledTokens:
        none = jnp.zeros((count, MAX_TOP))
        return SampledTokens(tokens, jnp.zeros(count), jnp.full(none.shape, -1, jnp.int32), none)

    return lax.cond(wanted.any(), describe, silent)


def _at(values: jax.Array, ids: jax.Array) -> jax.Array:
    """The value of each row of [B, V] at its id ([B])."""
    return jnp.take_along_axis(values, ids[:, None], -1)[:, 0]
