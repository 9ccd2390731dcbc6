"""Sampling against numpy: which tokens may be drawn, how often, and whose the randomness is."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gptoss_jax import sampling
from gptoss_jax.sampling import Samplers

VOCABULARY = 23
sample = jax.jit(sampling.sample)


def samplers(count, *, temperature=1.0, top_p=1.0, top_k=0, seeds=None):
    seeds = np.stack([np.zeros(count), np.arange(count)], -1) if seeds is None else np.asarray(seeds)
    return Samplers(
        seeds=jnp.asarray(seeds, jnp.uint32),
        temperature=jnp.full(count, temperature, jnp.float32),
        top_p=jnp.full(count, top_p, jnp.float32),
        top_k=jnp.full(count, top_k, jnp.int32),
    )


def allowed_tokens(logits, temperature, top_p, top_k):
    """The tokens that may be drawn, by sorting in float64."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    kept = order[: top_k or len(order)]
    scaled = logits[kept].astype(np.float64) / temperature
    shares = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    reach = np.cumsum(shares)
    return set(kept[: int(np.searchsorted(reach, top_p - 1e-6) + 1)].tolist())


def draw_many(logits, count, **options):
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits)))
    return np.asarray(sample(rows, samplers(count, **options), jnp.zeros(count, jnp.int32))).tolist()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 10, 100]),
)
def test_only_tokens_within_top_k_and_top_p_are_drawn(seed, temperature, top_p, top_k):
    logits = np.random.default_rng(seed).normal(scale=2.0, size=VOCABULARY).astype(np.float32)
    drawn = set(draw_many(logits, 256, temperature=temperature, top_p=top_p, top_k=top_k))
    assert drawn <= allowed_tokens(logits, temperature, top_p, top_k)


def test_every_token_within_top_p_is_reached():
    logits = np.array([2.0, 1.5, 1.0, 0.5, -8.0], np.float32)
    drawn = set(draw_many(logits, 512, top_p=0.95))
    assert drawn == allowed_tokens(logits, 1.0, 0.95, 0) == {0, 1, 2, 3}


def test_frequencies_follow_the_softmax_at_the_temperature():
    logits, temperature, count = np.array([1.0, 0.0, -1.0, 0.5], np.float32), 0.7, 20_000
    shares = np.exp(logits / temperature)
    shares /= shares.sum()
    counts = Counter(draw_many(logits, count, temperature=temperature))
    for token, share in enumerate(shares):
        deviation = 5 * np.sqrt(count * share * (1 - share))  # five sigma, and the seeds are fixed
        assert abs(counts[token] - count * share) < deviation


def test_temperature_zero_takes_the_largest_logit_beside_rows_that_sample():
    logits = np.random.default_rng(3).normal(size=(8, VOCABULARY)).astype(np.float32)
    mixed = samplers(8)
    mixed = Samplers(mixed.seeds, jnp.array([0.0, 1.0] * 4), mixed.top_p, mixed.top_k)
    drawn = np.asarray(sample(jnp.asarray(logits), mixed, jnp.zeros(8, jnp.int32)))
    assert drawn[::2].tolist() == logits.argmax(-1)[::2].tolist()


def test_a_draw_depends_on_seed_and_number_and_on_nothing_beside_it():
    logits = np.random.default_rng(4).normal(size=(6, VOCABULARY)).astype(np.float32)
    seeds = np.array([[7, 1], [7, 2], [8, 1], [7, 1], [9, 9], [0, 0]])
    draws = jnp.array([5, 5, 5, 5, 0, 1])
    together = np.asarray(sample(jnp.asarray(logits), samplers(6, seeds=seeds), draws))
    for row in range(6):
        turned = np.roll(np.arange(6), row)
        apart = sample(jnp.asarray(logits[turned]), samplers(6, seeds=seeds[turned]), draws[turned])
        assert np.asarray(apart).tolist() == together[turned].tolist()


def test_another_seed_or_number_gives_other_draws():
    flat = np.zeros(1000, np.float32)
    by_seed = draw_many(flat, 64)
    rows = jnp.zeros((64, 1000))
    same_seed = samplers(64, seeds=np.zeros((64, 2)))
    by_number = np.asarray(sample(rows, same_seed, jnp.arange(64))).tolist()
    assert len(set(by_seed)) > 50
    assert len(set(by_number)) > 50
