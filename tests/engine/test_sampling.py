"""Sampling against numpy: which tokens may be drawn, how often, and whose the randomness is."""

import dataclasses
import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax.engine import sampling
from gptoss_jax.engine.sampling import count_prompt, count_tokens, idle_samplers

VOCABULARY = 40
BATCH = 256  # Fewer rows are padded to that with idle ones, for one compilation to do for most tests.
_sample = jax.jit(sampling.sample, static_argnames="vocabulary")


def samplers(count, **fields):
    """Rows at temperature 1 with seeds of their own; a field is a value for all rows or an array of them."""
    idle = idle_samplers(count)
    fields = {
        "temperature": 1.0,
        "seeds": np.stack([np.zeros(count), np.arange(count)], -1),
        **fields,
    }
    arrays = {}
    for name, value in fields.items():
        like = getattr(idle, name)
        arrays[name] = np.array(np.broadcast_to(np.asarray(value), like.shape), like.dtype)
    return dataclasses.replace(idle, **arrays)


def ids(count, *tokens, size):
    """The first ids of each row, the others being -1."""
    return np.tile(np.array([*tokens, *[-1] * (size - len(tokens))], np.int32), (count, 1))


def pack(allowed):
    """Masks as llguidance packs them, from bool [B, V]."""
    bits = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
    return np.packbits(bits, axis=1, bitorder="little").view("<u4")


def sample(
    logits,
    rows,
    *,
    draws=0,
    counts=None,
    allowed=None,
    masked=False,
    vocabulary=None,
    batch=BATCH,
    width=VOCABULARY,
):
    """Rows of logits, masks and counts [B, V]; a V below `width` is padded with logits of -inf."""
    size, given = np.shape(logits)
    spare = batch - size

    def whole(values, dtype, filler=0):
        values = np.broadcast_to(np.asarray(values, dtype), (size, *np.shape(values)[1:]))
        values = np.pad(values, [(0, spare)] + [(0, 0)] * (values.ndim - 1))
        return (
            np.pad(values, [(0, 0), (0, max(0, width - given))], constant_values=filler)
            if values.ndim > 1
            else values
        )

    nothing = np.zeros((size, given))
    drawn = _sample(
        whole(logits, np.float32, -np.inf),
        jax.tree.map(lambda x, idle: np.concatenate([x, idle]), rows, idle_samplers(spare)),
        whole(draws, np.int32),
        whole(nothing if counts is None else counts, np.uint16),
        pack(whole(nothing if allowed is None else allowed, bool)),
        whole(masked, bool),
        vocabulary=vocabulary or max(width, given),
    )
    return jax.tree.map(lambda x: np.asarray(x)[:size], drawn)


def tokens(logits, rows, **options):
    return sample(logits, rows, **options).tokens.tolist()


def draw_many(logits, count, *, allowed=None, **fields):
    """`count` draws from the same logits, each with its own seed."""
    drawn = []
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        seeds = np.stack([np.zeros(size), np.arange(start, start + size)], -1)
        mask = None if allowed is None else np.tile(allowed, (size, 1))
        rows = samplers(size, seeds=seeds, **fields)
        drawn += tokens(np.tile(logits, (size, 1)), rows, allowed=mask, masked=allowed is not None)
    return drawn


def kept(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, slack=0.0):
    """The tokens that may be drawn, by sorting in float64. `slack` widens top-p and min-p."""
    scaled = np.asarray(logits, np.float32).astype(np.float64) / np.float64(np.float32(temperature))
    order = [t for t in np.argsort(-scaled, kind="stable") if scaled[t] > -np.inf]
    order = order[: top_k or len(order)]
    shares = np.exp(scaled[order] - scaled[order].max())
    shares /= shares.sum()
    chosen = []
    for place, (token, share) in enumerate(zip(order, shares, strict=True)):
        within = place == 0 or top_p >= 1 or shares[:place].sum() < top_p + slack
        if within and share >= (min_p - slack) * shares[0]:
            chosen.append(int(token))
    return set(chosen)


def softmax(logits):
    logits = np.asarray(logits, np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def logits_of(seed, kind):
    random = np.random.default_rng(seed)
    logits = random.normal(scale=2.0, size=VOCABULARY)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "equal":
        logits = np.full(VOCABULARY, random.choice([-3.0, 0.0, 1e4]))
    elif kind == "holes":
        logits[random.random(VOCABULARY) < 0.6] = -np.inf
        logits[random.integers(VOCABULARY)] = 0.5
    elif kind == "extreme":
        logits = random.choice([0.0, -0.0, 1e-30, -1e-30, 3e4, 2.9999e4, -3e4, -np.inf], VOCABULARY)
        logits[random.integers(VOCABULARY)] = -1.0
    return logits.astype(np.float32)


LIMITS = {
    "temperature": st.sampled_from([0.3, 1.0, 1.7]),
    "top_p": st.sampled_from([1e-7, 0.05, 0.5, 0.9, 0.999, 1.0]),
    "top_k": st.sampled_from([0, 1, 3, 10, 100]),
    "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
}
KINDS = st.sampled_from(["normal", "ties", "equal", "holes", "extreme"])
SEEDS = st.integers(0, 2**31)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, kind=KINDS, limits=st.fixed_dictionaries(LIMITS))
def test_exactly_the_tokens_within_top_k_top_p_and_min_p_are_kept(seed, kind, limits):
    logits = logits_of(seed, kind)
    rows = samplers(1, **limits)
    limited = limits["top_k"] > 0 or limits["top_p"] < 1 or limits["min_p"] > 0
    left = jax.jit(sampling._limit)(logits[None], rows)[0] if limited else logits
    chosen = set(np.flatnonzero(np.asarray(left) > -np.inf).tolist())
    assert kept(logits, **limits, slack=-3e-6) <= chosen <= kept(logits, **limits, slack=3e-6)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, kind=KINDS, limits=st.fixed_dictionaries(LIMITS))
def test_only_tokens_within_the_limits_are_drawn(seed, kind, limits):
    logits = logits_of(seed, kind)
    assert set(draw_many(logits, 256, **limits)) <= kept(logits, **limits, slack=3e-6)


def test_every_token_within_the_limits_is_reached():
    logits = np.array([2.0, 1.5, 1.0, 0.5, -8.0])
    assert set(draw_many(logits, 512, top_p=0.95)) == {0, 1, 2, 3}
    assert set(draw_many(logits, 512, top_k=3)) == {0, 1, 2}
    assert set(draw_many(logits, 512, min_p=0.5)) == {0, 1}


def test_of_tied_tokens_the_lowest_ids_are_kept():
    logits = np.array([1.0, 5.0, 1.0, 1.0, 5.0, 1.0])
    assert set(draw_many(logits, 512, top_k=4)) == {0, 1, 2, 4}
    assert set(draw_many(np.zeros(10), 512, top_p=0.45)) == {0, 1, 2, 3, 4}
    assert set(draw_many([0.0, -0.0, -0.0, 0.0], 128, top_k=2)) == {0, 1}


def test_frequencies_follow_the_softmax_at_the_temperature():
    logits, temperature, count = np.array([1.0, 0.0, -1.0, 0.5]), 0.7, 20_000
    drawn = Counter(draw_many(logits, count, temperature=temperature))
    for token, share in enumerate(softmax(logits / temperature)):
        deviation = 5 * np.sqrt(count * share * (1 - share))  # five sigma, and the seeds are fixed
        assert abs(drawn[token] - count * share) < deviation


def test_frequencies_within_limits_are_those_of_the_kept_tokens():
    logits, count = np.array([1.0, 0.0, -1.0, 0.5, 0.9]), 20_000
    drawn = Counter(draw_many(logits, count, top_k=3))
    for token, share in zip([0, 4, 3], softmax([1.0, 0.9, 0.5]), strict=True):
        assert abs(drawn[token] - count * share) < 5 * np.sqrt(count * share * (1 - share))


def test_temperature_zero_takes_the_largest_logit_beside_rows_that_sample():
    logits = np.random.default_rng(3).normal(size=(8, VOCABULARY))
    mixed = samplers(8, temperature=[0.0, 1.0] * 4, top_p=0.9)
    assert tokens(logits, mixed)[::2] == logits.argmax(-1)[::2].tolist()
    assert tokens(logits, idle_samplers(8)) == logits.argmax(-1).tolist()


def test_the_draw_is_that_of_categorical_with_the_number_folded_into_the_seed():
    logits = np.random.default_rng(5).normal(size=(64, 1000)).astype(np.float32)
    seeds = np.random.default_rng(6).integers(0, 2**32, (64, 2), dtype=np.uint32)
    expected = [
        int(
            jax.random.categorical(
                jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), number), row / 0.8
            )
        )
        for number, (seed, row) in enumerate(zip(seeds, logits, strict=True))
    ]
    assert (
        tokens(logits, samplers(64, seeds=seeds, temperature=0.8), draws=np.arange(64), batch=64) == expected
    )


def everything(count, random):
    """Rows that ask for all kinds of things, at random."""
    width = VOCABULARY

    def some(idle, values):
        return np.where(random.random(count) < 0.5, values, np.full(count, idle))

    rows = {}
    for name, idle, values in [
        ("temperature", 0.0, random.uniform(0.4, 2.0, count)),
        ("top_p", 1.0, random.uniform(0.1, 1.0, count)),
        ("top_k", 0, random.integers(1, width, count)),
        ("min_p", 0.0, random.uniform(0.0, 0.3, count)),
        ("repetition_penalty", 1.0, random.uniform(0.5, 2.0, count)),
        ("presence_penalty", 0.0, random.normal(size=count)),
        ("frequency_penalty", 0.0, random.normal(size=count)),
        ("ban_until", 0, random.integers(0, 8, count)),
        ("logprobs", False, np.ones(count, bool)),
    ]:
        rows[name] = some(idle, values)
    rows["seeds"] = random.integers(0, 2**32, (count, 2))
    rows["bias_ids"] = ids(count, size=sampling.MAX_BIASED)
    rows["bias_values"] = np.zeros((count, sampling.MAX_BIASED))
    rows["banned_ids"] = ids(count, size=sampling.MAX_BANNED)
    for row in np.flatnonzero(random.random(count) < 0.5):
        rows["bias_ids"][row, :5] = random.choice(width, 5, replace=False)
        rows["bias_values"][row, :5] = random.normal(scale=3.0, size=5)
        rows["banned_ids"][row, :4] = random.choice(width, 4, replace=False)
    inputs = {
        "draws": random.integers(0, 8, count),
        "counts": random.choice([0, 0, 0, 1, 3, 1 << 15, (1 << 15) + 2], (count, width)),
        "allowed": random.random((count, width)) < 0.3,
        "masked": random.random(count) < 0.5,
    }
    inputs["allowed"][:, 7] = True
    return rows, inputs


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_a_draw_depends_on_its_own_row_alone(seed):
    random = np.random.default_rng(seed)
    # Rows of very different heights, as one row's must not set the scale of another's.
    logits = random.normal(scale=2.0, size=(6, VOCABULARY)) + random.normal(scale=100.0, size=(6, 1))
    rows, inputs = everything(6, random)
    together = sample(logits, samplers(6, **rows), **inputs)
    order = random.permutation(6)
    turned = sample(
        logits[order],
        samplers(6, **{name: x[order] for name, x in rows.items()}),
        **{name: x[order] for name, x in inputs.items()},
    )
    assert np.array_equal(turned.tokens, together.tokens[order])
    for row in range(6):
        one = slice(row, row + 1)
        alone = sample(
            logits[one],
            samplers(1, **{name: x[one] for name, x in rows.items()}),
            **{name: x[one] for name, x in inputs.items()},
            batch=1,
        )
        assert alone.tokens[0] == together.tokens[row]
        assert np.array_equal(alone.top_ids[0], together.top_ids[row])
        np.testing.assert_allclose(alone.logprobs[0], together.logprobs[row], atol=1e-4)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, value=st.sampled_from([0.0, 1e9, -np.inf, np.nan]))
def test_padding_changes_no_draw_and_is_never_drawn(seed, value):
    random = np.random.default_rng(seed)
    logits = random.normal(scale=2.0, size=(5, VOCABULARY))
    rows, inputs = everything(5, random)
    plain = sample(logits, samplers(5, **rows), **inputs)
    wide = [(0, 0), (0, 60)]
    inputs["counts"] = np.pad(inputs["counts"], wide, constant_values=1)
    inputs["allowed"] = np.pad(inputs["allowed"], wide, constant_values=True)
    padded = sample(
        np.pad(logits, wide, constant_values=value), samplers(5, **rows), **inputs, vocabulary=VOCABULARY
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, plain, padded))


def test_another_seed_or_number_gives_other_draws():
    flat = np.zeros((64, 1000))
    by_seed = tokens(flat, samplers(64), batch=64)
    by_number = tokens(flat, samplers(64, seeds=0), draws=np.arange(64), batch=64)
    assert len(set(by_seed)) > 50
    assert len(set(by_number)) > 50


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, kind=KINDS, limits=st.fixed_dictionaries(LIMITS), share=st.sampled_from([0.05, 0.4, 0.9]))
def test_a_draw_that_the_mask_allows_is_the_draw_with_the_mask(seed, kind, limits, share):
    random = np.random.default_rng(seed)
    logits, allowed = logits_of(seed, kind), random.random(VOCABULARY) < share
    free = draw_many(logits, 128, **limits)
    held = draw_many(logits, 128, allowed=allowed, **limits)
    assert all(new == old for old, new in zip(free, held, strict=True) if allowed[old])
    both = kept(logits, **limits, slack=3e-6) & set(np.flatnonzero(allowed).tolist())
    narrow = kept(logits, **limits, slack=-3e-6) & set(np.flatnonzero(allowed).tolist())
    if narrow:
        assert set(held) <= both


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, limits=st.fixed_dictionaries(LIMITS))
def test_where_the_mask_allows_no_kept_token_the_limits_choose_among_the_allowed(seed, limits):
    logits = logits_of(seed, "normal")
    allowed = np.ones(VOCABULARY, bool)
    allowed[list(kept(logits, **limits, slack=3e-6))] = False
    if not allowed.any():
        allowed[:5] = True
    inside = np.where(allowed, logits, -np.inf)
    assert set(draw_many(logits, 128, allowed=allowed, **limits)) <= kept(inside, **limits, slack=3e-6)


def test_greedy_rows_take_the_likeliest_allowed_token_whatever_the_limits():
    random = np.random.default_rng(8)
    logits, allowed = random.normal(size=(16, VOCABULARY)), random.random((16, VOCABULARY)) < 0.2
    rows = samplers(16, temperature=0.0, top_k=1, top_p=0.01)
    expected = np.where(allowed, logits, -np.inf).argmax(-1)
    assert tokens(logits, rows, allowed=allowed, masked=True) == expected.tolist()


def test_masks_hold_for_the_masked_rows_only():
    logits = np.tile(np.arange(VOCABULARY, dtype=float), (4, 1))
    allowed = np.zeros((4, VOCABULARY), bool)
    allowed[:, 33] = True
    assert tokens(logits, idle_samplers(4), allowed=allowed, masked=[True, False, True, False]) == [
        33,
        VOCABULARY - 1,
        33,
        VOCABULARY - 1,
    ]


def test_a_mask_that_allows_banned_tokens_only_goes_before_the_ban():
    logits = np.tile(np.linspace(2, 0, VOCABULARY), (2, 1))
    allowed = np.zeros((2, VOCABULARY), bool)
    allowed[:, [4, 9]] = True
    bans = {"banned_ids": ids(2, 4, 9, size=sampling.MAX_BANNED), "ban_until": 5}
    for limits in ({"temperature": 0.0}, {"top_k": 1}):
        assert tokens(logits, samplers(2, **bans, **limits), allowed=allowed, masked=True) == [4, 4]
    allowed[:, 20] = True
    assert tokens(logits, samplers(2, **bans, temperature=0.0), allowed=allowed, masked=True) == [20, 20]


def test_banned_tokens_are_not_drawn_before_their_number():
    logits = np.tile(np.linspace(4, 0, VOCABULARY), (6, 1))
    rows = samplers(6, temperature=0.0, banned_ids=ids(6, 0, 1, size=sampling.MAX_BANNED), ban_until=3)
    assert tokens(logits, rows, draws=np.arange(6)) == [2, 2, 2, 0, 0, 0]
    rows = samplers(256, banned_ids=ids(256, 0, 3, size=sampling.MAX_BANNED), ban_until=1, top_k=2)
    assert set(tokens(np.tile(logits[0], (256, 1)), rows)) == {1, 2}


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    repetition=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    presence=st.sampled_from([0.0, 0.7, -1.5]),
    frequency=st.sampled_from([0.0, 0.4, -0.9]),
)
def test_penalties_and_bias_change_logits_by_their_formulas(seed, repetition, presence, frequency):
    random = np.random.default_rng(seed)
    logits = random.normal(scale=2.0, size=VOCABULARY).astype(np.float32)
    in_prompt, times = random.random(VOCABULARY) < 0.3, random.choice([0, 0, 1, 2, 7], VOCABULARY)
    biased = random.choice(VOCABULARY, 12, replace=False)
    bias = random.normal(scale=2.0, size=12)
    expected = []
    for token, logit in enumerate(logits.astype(np.float64)):
        if in_prompt[token] or times[token]:
            logit = logit / repetition if logit > 0 else logit * repetition
        logit -= presence * (times[token] > 0) + frequency * times[token]
        expected.append(logit + bias[biased == token].sum())
    fields = {
        "temperature": 0.0,
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "bias_ids": ids(VOCABULARY, *biased, size=sampling.MAX_BIASED),
        "bias_values": np.pad(bias, (0, sampling.MAX_BIASED - 12)),
    }
    # Row by row the best ones are taken away, so the tokens come in the order of their logits.
    order = np.argsort(-np.array(expected))
    allowed = np.ones((VOCABULARY, VOCABULARY), bool)
    for place in range(VOCABULARY):
        allowed[place, order[:place]] = False
    drawn = tokens(
        np.tile(logits, (VOCABULARY, 1)),
        samplers(VOCABULARY, **fields),
        counts=np.tile(in_prompt * (1 << 15) + times, (VOCABULARY, 1)),
        allowed=allowed,
        masked=True,
    )
    np.testing.assert_allclose(np.array(expected)[drawn], np.array(expected)[order], atol=1e-4)


def test_settings_of_any_finite_size_still_draw_the_token_they_mean():
    logits = np.tile(np.linspace(3, 1, VOCABULARY), (64, 1))
    counts = np.zeros((64, VOCABULARY))
    counts[:, 0], counts[:, 1] = 1, 1 << 15
    for fields, expected in [
        ({"presence_penalty": np.inf}, {1}),
        ({"frequency_penalty": -np.inf}, {0}),
        ({"repetition_penalty": np.inf}, {2}),
        ({"repetition_penalty": 1e-45}, {0, 1}),
        ({"bias_ids": ids(64, 5, size=sampling.MAX_BIASED), "bias_values": np.inf}, {5}),
        ({"bias_ids": ids(64, 0, size=sampling.MAX_BIASED), "bias_values": -np.inf}, {1}),
    ]:
        for cold in ({"temperature": 0.0}, {"temperature": 1e-6}, {"temperature": 1e-45, "top_p": 0.9}):
            drawn = set(tokens(logits, samplers(64, **fields, **cold), counts=counts))
            assert drawn <= expected and drawn, (fields, cold)
    assert len(set(tokens(logits, samplers(64, temperature=np.inf)))) > 20


def test_log_probabilities_are_those_of_the_logits_as_they_came():
    random = np.random.default_rng(11)
    logits = random.normal(scale=4.0, size=(5, VOCABULARY)).astype(np.float32)
    logits[1, 5:35] = -np.inf
    logits[2] = np.round(logits[2])
    rows = samplers(
        5,
        logprobs=[True, True, True, False, True],
        temperature=[0.0, 0.7, 1.0, 1.0, 2.0],
        top_k=2,
        bias_ids=ids(5, 17, size=sampling.MAX_BIASED),
        bias_values=100.0,
    )
    drawn = sample(logits, rows)
    with np.errstate(divide="ignore"):
        expected = np.log(softmax(logits))
    for row in (0, 1, 2, 4):
        best = np.argsort(-logits[row], kind="stable")[:20]
        assert drawn.top_ids[row].tolist() == best.tolist()
        np.testing.assert_allclose(drawn.top_logprobs[row], expected[row, best], atol=1e-5)
        np.testing.assert_allclose(drawn.logprobs[row], expected[row, drawn.tokens[row]], atol=1e-5)
    assert drawn.logprobs[3] == 0
    assert set(drawn.top_ids[3].tolist()) == {-1}
    silent = sample(logits, dataclasses.replace(rows, logprobs=np.zeros(5, bool)))
    assert np.array_equal(silent.tokens, drawn.tokens)


@pytest.mark.slow
def test_a_vocabulary_of_fewer_tokens_than_are_listed_ends_in_none():
    drawn = sample(np.array([[0.0, 2.0, 1.0]]), samplers(1, logprobs=True), width=3)
    assert drawn.top_ids[0].tolist() == [1, 2, 0] + [-1] * 17
    np.testing.assert_allclose(drawn.top_logprobs[0, :3], np.log(softmax([2.0, 1.0, 0.0])), atol=1e-6)


def test_probabilities_are_summed_exactly_over_a_whole_vocabulary():
    size = 201_088
    shares = np.random.default_rng(12).random((2, size)).astype(np.float32) ** 8
    shares[1] = 1.0
    expected = shares.astype(np.float64).sum(-1)
    np.testing.assert_allclose(jax.jit(sampling._sum)(shares), expected, rtol=2e-7)


@pytest.mark.parametrize(("top_p", "expected"), [(0.25, 50_272), (0.999, 200_887)])
def test_top_p_counts_a_whole_vocabulary_of_equal_tokens(top_p, expected):
    left = jax.jit(sampling._limit)(np.zeros((1, 201_088), np.float32), samplers(1, top_p=top_p))
    assert abs(int((left > -np.inf).sum()) - expected) <= 1


def test_counting_tokens_adds_one_to_the_active_rows_and_keeps_the_mark_of_the_prompt():
    counts = np.zeros((3, 8), np.uint16)
    counts[:, 2] = 1 << 15
    after = jax.jit(count_tokens)(counts, np.array([2, 5, -1]), np.array([True, True, False]))
    expected = counts.copy()
    expected[0, 2], expected[1, 5] = (1 << 15) + 1, 1
    assert np.array_equal(after, expected)


def test_counts_saturate():
    counts = jnp.array([[32766, 32767, 65535]] * 3, jnp.uint16)
    for _ in range(3):
        counts = count_tokens(counts, np.array([0, 1, 2]), np.ones(3, bool))
    assert np.diagonal(counts).tolist() == [32767, 32767, 65535]
    long = np.zeros(40_000, np.int32)
    assert int(count_prompt(jnp.zeros((1, 2), jnp.uint16), 0, long, long)[0, 0]) == 65535


@settings(max_examples=25, deadline=None)
@given(
    prompt=st.lists(st.integers(-1, 9), max_size=12),
    completion=st.lists(st.integers(-1, 9), max_size=12),
    row=st.integers(-2, 4),
)
def test_counting_a_prompt_makes_its_row_anew_and_no_other(prompt, completion, row):
    counts = np.random.default_rng(1).integers(0, 2**16, (3, 10)).astype(np.uint16)
    padded = [np.array(x + [-1] * (12 - len(x)), np.int32) for x in (prompt, completion)]
    after = np.asarray(jax.jit(count_prompt)(counts, row, *padded))
    expected = counts.copy()
    if 0 <= row < 3:
        expected[row] = [completion.count(t) + (1 << 15) * (t in prompt) for t in range(10)]
    assert np.array_equal(after, expected)


def test_idle_rows_fit_what_a_request_may_ask_for():
    from gptoss_jax.engine import request

    idle = idle_samplers(3)
    assert idle.bias_ids.shape == idle.bias_values.shape == (3, request.MAX_BIASED_TOKENS)
    assert idle.banned_ids.shape[1] >= request.MAX_STOP_TOKENS
    assert sampling.MAX_TOP == request.MAX_TOP_LOGPROBS


def test_sampling_runs_inside_a_compiled_loop():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(4, VOCABULARY)), jnp.float32)
    rows = samplers(4, presence_penalty=3.0, top_p=0.9, logprobs=[True, False] * 2)
    nothing = np.zeros((4, 2), np.uint32), np.zeros(4, bool)

    @jax.jit
    def loop(counts):
        def step(number, state):
            counts, drawn = state
            new = sampling.sample(
                logits, rows, jnp.full(4, number), counts, *nothing, vocabulary=VOCABULARY
            ).tokens
            return count_tokens(counts, new, jnp.ones(4, bool)), drawn.at[number].set(new)

        return jax.lax.fori_loop(0, 6, step, (counts, jnp.zeros((6, 4), jnp.int32)))

    counts, drawn = loop(jnp.zeros((4, VOCABULARY), jnp.uint16))
    one_by_one = functools.partial(sample, logits, rows)
    seen = np.zeros((4, VOCABULARY), np.uint16)
    for number in range(6):
        new = one_by_one(draws=number, counts=seen).tokens
        assert np.array_equal(new, drawn[number])
        seen[np.arange(4), new] += 1
    assert np.array_equal(seen, counts)
