"""Attention: what a query sees, what the sinks do, and that the cache changes nothing."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from checkpoints.random import fill_random
from gptoss_jax.cache import (
    EMPTY,
    Cache,
    CacheShape,
    copy_rings,
    new_cache,
    places_to_decode,
    places_to_prefill,
    write_rings,
)
from gptoss_jax.model import Transformer, with_parameters
from gptoss_jax.model.rope import rotations
from pallas_kernels.attention import attend, sees, unpack
from pallas_kernels.platform import using

WINDOW = 4
CONFIG = ModelConfig(
    num_layers=2,
    vocabulary_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_heads=6,
    num_kv_heads=2,
    head_size=8,
    num_experts=3,
    experts_per_token=2,
    sliding_window=WINDOW,
)
LENGTH = 13


def random_model(config: ModelConfig) -> Transformer:
    """A random model: no bias and no sink is zero."""
    parameters = {}
    for name, spec in parameter_specs(config).items():
        values = np.empty(spec.shape, spec.dtype)
        fill_random(name, values, seed=0)
        parameters[name] = jnp.asarray(values if spec.dtype == np.uint8 else values.astype(np.float32))
    return with_parameters(config, parameters, jnp.float32)


@functools.cache
def model() -> Transformer:
    return random_model(CONFIG)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _attention(
    graph: nnx.GraphDef, state: nnx.State, layer: int, x: jax.Array, positions: jax.Array
) -> jax.Array:
    unturned = jnp.ones((*positions.shape, CONFIG.head_size // 2))
    return nnx.merge(graph, state).layers[layer].attention(x, positions, (unturned, 0 * unturned))[0]


def attention_output(layer: int, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """What a layer's attention gives for x [B, T, D], without rotation."""
    return np.asarray(_attention(*nnx.split(model()), layer, x, positions))


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, sinks: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Attention in float64, one query of one head at a time."""
    out = np.zeros(q.shape)
    for row, query, head in np.ndindex(q.shape[:3]):
        kv_head = head // (q.shape[2] // k.shape[2])
        powers = np.exp(k[row, :, kv_head].astype(float) @ q[row, query, head] / np.sqrt(q.shape[3]))
        powers *= visible[row, query]
        out[row, query, head] = powers @ v[row, :, kv_head] / (powers.sum() + np.exp(float(sinks[head])))
    return out


def random_attention(seed: int) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(seed)
    q = generator.standard_normal((2, 3, 6, 8)).astype(np.float32)
    k, v = generator.standard_normal((2, 2, 5, 2, 8)).astype(np.float32)
    sinks = generator.standard_normal(6).astype(np.float32)
    visible = generator.random((2, 3, 5)) < 0.6
    visible[0, 0] = False  # a query that sees no key at all
    return q, k, v, sinks, visible


def test_attention_is_a_softmax_whose_sink_takes_a_share_and_gives_nothing() -> None:
    q, k, v, sinks, visible = random_attention(0)
    out = np.asarray(attend(*map(jnp.asarray, (q, k, v, sinks, visible))))
    np.testing.assert_allclose(out, oracle(q, k, v, sinks, visible), atol=1e-6)
    assert not out[0, 0].any()


@pytest.mark.parametrize(("sink", "kept"), [(-1e4, 1.0), (1e4, 0.0)])
def test_a_sink_can_take_nothing_or_everything(sink: float, kept: float) -> None:
    q, k, _, _, _ = random_attention(1)
    everything = jnp.ones((2, 3, 5), bool)
    out = attend(jnp.asarray(q), jnp.asarray(k), jnp.ones((2, 5, 2, 8)), jnp.full(6, sink), everything)
    np.testing.assert_allclose(out, kept, atol=1e-6)


def test_scores_of_any_size_stay_finite() -> None:
    q, k, v, sinks, _ = random_attention(2)
    everything = np.ones((2, 3, 5), bool)
    out = attend(*map(jnp.asarray, (q * 1e3, k * 1e3, v, sinks, everything)))
    assert np.isfinite(out).all()


@pytest.mark.parametrize("window", [1, 4, 128, None])
def test_a_query_sees_itself_and_the_past_within_its_window(window: int | None) -> None:
    positions = np.arange(300)[None]
    visible = np.asarray(sees(positions, positions, window))[0]
    for query in range(300):
        first = 0 if window is None else max(0, query - window + 1)
        assert np.flatnonzero(visible[query]).tolist() == list(range(first, query + 1))


def test_tokens_that_do_not_exist_are_seen_by_nobody_and_see_nothing() -> None:
    positions = np.array([[0, EMPTY, 1, EMPTY, 2]])
    visible = np.asarray(sees(positions, positions, None))[0]
    assert not visible[:, [1, 3]].any()
    assert not visible[[1, 3]].any()
    assert visible[4].tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(("layer", "seen"), [(0, WINDOW), (1, LENGTH)], ids=["even: sliding", "odd: full"])
def test_a_layers_last_token_depends_on_exactly_the_keys_of_its_window(layer: int, seen: int) -> None:
    x = np.random.default_rng(5).standard_normal((1, LENGTH, CONFIG.hidden_size)).astype(np.float32)
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    before = attention_output(layer, x, positions)
    for token in range(LENGTH):
        changed = x.copy()
        changed[0, token] += 1
        after = attention_output(layer, changed, positions)
        assert np.array_equal(after[0, -1], before[0, -1]) == (token < LENGTH - seen)
        np.testing.assert_array_equal(after[0, :token], before[0, :token])  # the past sees no future


@functools.partial(jax.jit, static_argnums=0)
def _run(graph: nnx.GraphDef, state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(tokens, positions)


def run(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Hidden states [B, T, D] of the whole model, without a cache."""
    return np.asarray(_run(*nnx.split(model()), tokens, positions))


def test_padding_and_neighbours_change_no_tokens_result() -> None:
    generator = np.random.default_rng(6)
    tokens = generator.integers(0, CONFIG.vocabulary_size, (2, LENGTH), dtype=np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
    whole = run(tokens, positions)
    length = 9
    short = positions.copy()
    short[0, length:] = EMPTY
    for filler in (0, 63):
        padded = tokens.copy()
        padded[0, length:] = filler
        padded[1] = generator.permutation(tokens[1])
        hidden = run(padded, short)
        np.testing.assert_allclose(hidden[0, :length], whole[0, :length], rtol=0, atol=1e-6)
    # Padding in front, as a batch of unequal prompts might have it.
    shift = LENGTH - length
    front = np.concatenate([np.zeros((2, shift), np.int32), tokens[:, :length]], axis=1)
    front_positions = np.concatenate([np.full((2, shift), EMPTY, np.int32), positions[:, :length]], axis=1)
    hidden = run(front, front_positions)
    np.testing.assert_allclose(hidden[:, shift:], whole[:, :length], rtol=0, atol=2e-6)


SLIDING = ModelConfig(**(dataclasses.asdict(CONFIG) | {"num_layers": 1, "num_kv_heads": 1, "head_size": 2}))
RING = CacheShape(pages=1, page_size=16, slots=2, ring=WINDOW + 2)


@jax.jit
def _write(cache: Cache, keys: jax.Array, positions: jax.Array, fresh: jax.Array) -> Cache:
    table, slots = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
    places, held = places_to_prefill(cache, table, positions, slots, fresh)
    return Cache((), (write_rings(cache.rings[0], keys, -keys, places),), held)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3 * RING.ring), min_size=1, max_size=6), st.integers(0, 40), st.integers(0, 3))
def test_a_ring_holds_exactly_the_last_keys_however_they_arrive(
    chunks: list[int], start: int, missing: int
) -> None:
    width = 3 * RING.ring + missing
    cache = new_cache(SLIDING, RING, jnp.float32)
    cache = dataclasses.replace(cache, held=cache.held.at[:].set(7))  # another sequence's: void
    position = start
    for number, size in enumerate(chunks):
        positions = np.full((1, width), EMPTY, np.int32)
        positions[0, :size] = np.arange(position, position + size)
        keys = np.repeat(positions[..., None, None], 2, axis=-1).astype(np.float32)
        cache = _write(cache, keys, positions, np.array([number == 0]))
        position += size
    expected = set(range(max(start, position - RING.ring), position))
    assert set(cache.held[1].tolist()) - {EMPTY} == expected
    assert set(cache.held[0].tolist()) == {7}  # the other slot's ring is its own
    for index, held in enumerate(cache.held[1].tolist()):
        if held != EMPTY:
            assert held % RING.ring == index
            keys, values = unpack(cache.rings[0][1, :, :, index], 2)
            assert keys.tolist() == [[held, held]]
            assert values.tolist() == [[-held, -held]]


def test_sliding_layers_cache_their_window_and_full_ones_pages() -> None:
    shape = CacheShape(pages=5, page_size=32, slots=3, ring=WINDOW, snapshots=2)
    cache = new_cache(CONFIG, shape, jnp.bfloat16)
    assert [(pool.shape[0], pool.shape[3]) for pool in cache.pools] == [(5, 32)]
    assert [(ring.shape[0], ring.shape[3]) for ring in cache.rings] == [(3 + 2 + 1, WINDOW)]


def test_rings_are_copied_with_what_they_hold() -> None:
    cache = new_cache(SLIDING, RING._replace(slots=4), jnp.float32)
    held = jnp.arange(5, dtype=jnp.int32)[:, None] * jnp.ones((1, RING.ring), jnp.int32)
    cache = Cache((), (cache.rings[0] + held[:, None, None, :, None],), held)
    copied = copy_rings(cache, jnp.array([2]), jnp.array([0]))
    assert copied.held[:, 0].tolist() == copied.rings[0][:, 0, 0, 0, 0].tolist() == [2, 1, 2, 3, 4]


KERNEL_CONFIG = dataclasses.replace(CONFIG, num_heads=8, num_kv_heads=4, head_size=16, sliding_window=6)


# Compiled quickly, not well: an interpreted kernel takes seconds to compile and milliseconds to run.
@functools.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def _cached_step(
    graph: nnx.GraphDef,
    state: nnx.State,
    tokens: jax.Array,
    positions: jax.Array,
    cache: Cache,
    table: jax.Array,
    fresh: jax.Array,
) -> tuple[jax.Array, Cache]:
    """The attention of a sliding and a full layer: a chunk of T tokens, or one each if T is 1."""
    model = nnx.merge(graph, state)
    x = model.embedding(tokens)
    rotation = rotations(positions, KERNEL_CONFIG)
    if tokens.shape[1] == 1:
        places, held = places_to_decode(cache, table, positions[:, 0])
    else:
        slots = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        places, held = places_to_prefill(cache, table, positions, slots, fresh)
    mixed, rings = model.layers[0].attention(x, positions, rotation, cache.rings[0], places)
    x = x + mixed
    mixed, pool = model.layers[1].attention(x, positions, rotation, cache.pools[0], places)
    return x + mixed, Cache((pool,), (rings,), held)


def test_attention_on_tpu_kernels_equals_attention_on_references() -> None:
    """Both layers, float32: prompts of unequal length in two chunks, then single tokens, one slot idle."""
    graph, state = nnx.split(random_model(KERNEL_CONFIG))
    generator = np.random.default_rng(7)
    chunks = [np.full((3, 20), EMPTY, np.int32), np.full((3, 20), EMPTY, np.int32)]
    for row, length in enumerate((33, 9)):
        for begin, chunk in zip((0, 20), chunks, strict=True):
            count = min(20, max(0, length - begin))
            chunk[row, :count] = np.arange(begin, begin + count)
    singles = [np.array([[33 + step], [9 + step], [EMPTY]], np.int32) for step in range(4)]
    steps = [
        (generator.integers(0, CONFIG.vocabulary_size, positions.shape, dtype=np.int32), positions)
        for positions in (*chunks, *singles)
    ]
    table = generator.permutation(9).astype(np.int32).reshape(3, 3)
    shape = CacheShape(pages=9, page_size=16, slots=3, ring=32, snapshots=1)
    results = {}
    for mode in ("reference", "tpu-interpret"):
        cache = new_cache(KERNEL_CONFIG, shape, jnp.float32)
        results[mode] = []
        with using(mode):
            for number, (tokens, positions) in enumerate(steps):
                fresh = np.full(3, number == 0)
                x, cache = _cached_step(graph, state, tokens, positions, cache, table, fresh)
                results[mode].append(np.where(positions[..., None] >= 0, x, 0))
    for actual, expected in zip(results["tpu-interpret"], results["reference"], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
