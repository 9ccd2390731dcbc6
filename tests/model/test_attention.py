"""Attention: what a query sees, what the sinks do, and that the cache changes nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

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
from gptoss_jax.model import GptOss, Transformer, gpt_oss, plain_with_parameters
from gptoss_jax.model.gpt_oss import visible_keys
from gptoss_jax.model.kv_cache import (
    EMPTY,
    KVCache,
    Rings,
    copy_rings,
    decode_metadata,
    new_cache,
    prefill_metadata,
)
from gptoss_jax.sizes import CacheShape
from pallas_kernels import attention as kernels
from pallas_kernels.attention import sees, unpack
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


def random_model(config: ModelConfig) -> GptOss:
    """A random plain model: no bias and no sink is zero."""
    parameters = {}
    for name, spec in parameter_specs(config).items():
        values = np.empty(spec.shape, spec.dtype)
        fill_random(name, values, seed=0)
        parameters[name] = jnp.asarray(values if spec.dtype == np.uint8 else values.astype(np.float32))
    return plain_with_parameters(config, parameters, jnp.float32)


@functools.cache
def model() -> GptOss:
    return random_model(CONFIG)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _attention(
    graph: nnx.GraphDef, state: nnx.State, layer: int, x: jax.Array, positions: jax.Array
) -> jax.Array:
    unturned = jnp.ones((*positions.shape, CONFIG.head_size // 2))
    return nnx.merge(graph, state).layers[layer].attention(x, positions, (unturned, 0 * unturned))


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


Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
both = pytest.mark.parametrize(
    "attend", [gpt_oss.attend, kernels.attend], ids=["plain model", "kernels' reference"]
)


@both
def test_attention_is_a_softmax_whose_sink_takes_a_share_and_gives_nothing(attend: Attend) -> None:
    q, k, v, sinks, visible = random_attention(0)
    out = np.asarray(attend(*map(jnp.asarray, (q, k, v, sinks, visible))))
    np.testing.assert_allclose(out, oracle(q, k, v, sinks, visible), atol=1e-6)
    assert not out[0, 0].any()


@both
@pytest.mark.parametrize(("sink", "kept"), [(-1e4, 1.0), (1e4, 0.0)])
def test_a_sink_can_take_nothing_or_everything(attend: Attend, sink: float, kept: float) -> None:
    q, k, _, _, _ = random_attention(1)
    everything = jnp.ones((2, 3, 5), bool)
    out = attend(jnp.asarray(q), jnp.asarray(k), jnp.ones((2, 5, 2, 8)), jnp.full(6, sink), everything)
    np.testing.assert_allclose(out, kept, atol=1e-6)


@both
def test_scores_of_any_size_stay_finite(attend: Attend) -> None:
    q, k, v, sinks, _ = random_attention(2)
    everything = np.ones((2, 3, 5), bool)
    out = attend(*map(jnp.asarray, (q * 1e3, k * 1e3, v, sinks, everything)))
    assert np.isfinite(out).all()


@pytest.mark.parametrize("mask", [visible_keys, sees], ids=["plain model", "kernels' reference"])
@pytest.mark.parametrize("window", [1, 4, 128, None])
def test_a_query_sees_itself_and_the_past_within_its_window(
    mask: Callable[..., jax.Array], window: int | None
) -> None:
    positions = np.arange(300)[None]
    visible = np.asarray(mask(positions, positions, window))[0]
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


def served(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Hidden states [B, T, D] of the served model, into an empty cache."""
    shape = CacheShape(len(tokens), 16, len(tokens), 16)
    numbers = np.arange(len(tokens), dtype=np.int32)
    graph, state = nnx.split(Transformer(model()))

    def run(state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        cache = new_cache(CONFIG, shape, jnp.float32)
        first_chunk = jnp.ones(len(tokens), bool)
        return nnx.merge(graph, state).prefill(
            tokens, positions, cache, numbers[:, None], numbers, first_chunk
        )[0]

    return np.asarray(jax.jit(run)(state, tokens, positions))


def test_padding_and_neighbours_change_no_tokens_result() -> None:
    generator = np.random.default_rng(6)
    tokens = generator.integers(0, CONFIG.vocabulary_size, (2, LENGTH), dtype=np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
    whole = served(tokens, positions)
    length = 9
    short = positions.copy()
    short[0, length:] = EMPTY
    for filler in (0, 63):
        padded = tokens.copy()
        padded[0, length:] = filler
        padded[1] = generator.permutation(tokens[1])
        hidden = served(padded, short)
        np.testing.assert_allclose(hidden[0, :length], whole[0, :length], rtol=0, atol=1e-6)


SLIDING = ModelConfig(**(dataclasses.asdict(CONFIG) | {"num_layers": 1, "num_kv_heads": 1, "head_size": 2}))
RING = CacheShape(pages=1, page_size=16, slots=2, ring=WINDOW + 2)


@jax.jit
def _write(cache: KVCache, keys: jax.Array, positions: jax.Array, first_chunk: jax.Array) -> KVCache:
    block_table, rings = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
    chunk, cached_positions = prefill_metadata(cache, block_table, positions, rings, first_chunk)
    return KVCache.of_layers([cache.rings[0].store_chunk(keys, -keys, chunk)], cached_positions)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3 * RING.ring), min_size=1, max_size=6), st.integers(0, 40), st.integers(0, 3))
def test_a_ring_holds_exactly_the_last_keys_however_they_arrive(
    chunks: list[int], start: int, missing: int
) -> None:
    width = 3 * RING.ring + missing
    cache = new_cache(SLIDING, RING, jnp.float32)
    others = cache.cached_positions.at[:].set(7)
    cache = dataclasses.replace(cache, cached_positions=others)  # another sequence's: void
    position = start
    for number, size in enumerate(chunks):
        positions = np.full((1, width), EMPTY, np.int32)
        positions[0, :size] = np.arange(position, position + size)
        keys = np.repeat(positions[..., None, None], 2, axis=-1).astype(np.float32)
        cache = _write(cache, keys, positions, np.array([number == 0]))
        position += size
    expected = set(range(max(start, position - RING.ring), position))
    assert set(cache.cached_positions[1].tolist()) - {EMPTY} == expected
    assert set(cache.cached_positions[0].tolist()) == {7}  # the other slot's ring is its own
    for index, held in enumerate(cache.cached_positions[1].tolist()):
        if held != EMPTY:
            assert held % RING.ring == index
            keys, values = unpack(cache.rings[0].entries[1, :, :, index], 2)
            assert keys.tolist() == [[held, held]]
            assert values.tolist() == [[-held, -held]]


def test_sliding_layers_cache_their_window_and_full_ones_pages() -> None:
    shape = CacheShape(pages=5, page_size=32, slots=3, ring=WINDOW, snapshots=2)
    cache = new_cache(CONFIG, shape, jnp.bfloat16)
    assert [(pool.entries.shape[0], pool.entries.shape[3]) for pool in cache.pools] == [(5, 32)]
    shapes = [rings.entries.shape for rings in cache.rings]
    assert [(shape[0], shape[3]) for shape in shapes] == [(3 + 2 + 1, WINDOW)]


def test_rings_are_copied_with_what_they_hold() -> None:
    cache = new_cache(SLIDING, RING._replace(slots=4), jnp.float32)
    held = jnp.arange(5, dtype=jnp.int32)[:, None] * jnp.ones((1, RING.ring), jnp.int32)
    cache = KVCache.of_layers([Rings(cache.rings[0].entries + held[:, None, None, :, None])], held)
    copied = copy_rings(cache, jnp.array([2]), jnp.array([0]))
    assert copied.cached_positions[:, 0].tolist() == [2, 1, 2, 3, 4]
    assert copied.rings[0].entries[:, 0, 0, 0, 0].tolist() == [2, 1, 2, 3, 4]


KERNEL_CONFIG = dataclasses.replace(CONFIG, num_heads=8, num_kv_heads=4, head_size=16, sliding_window=6)


def plain_attention(model: GptOss, tokens: np.ndarray) -> np.ndarray:
    """x [B, T, D] after the attention of both layers, by the plain model and without experts."""
    positions = jnp.tile(jnp.arange(tokens.shape[1]), (len(tokens), 1))
    rotation = gpt_oss.rotations(positions, KERNEL_CONFIG)
    x = model.embedding(tokens)
    for layer in model.layers:
        x = x + layer.attention(x, positions, rotation)
    return np.asarray(x)


# Compiled quickly, not well: an interpreted kernel takes seconds to compile and milliseconds to run.
@functools.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def served_attention(
    graph: nnx.GraphDef,
    state: nnx.State,
    tokens: jax.Array,
    positions: jax.Array,
    cache: KVCache,
    block_table: jax.Array,
    first_chunk: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """The same of a chunk of T tokens, or of one each if T is 1, by the served model over a cache."""
    model = nnx.merge(graph, state)
    x, rotation, layers = model.embedding(tokens), gpt_oss.rotations(positions, KERNEL_CONFIG), []
    if tokens.shape[1] == 1:
        step, cached_positions = decode_metadata(cache, block_table, positions[:, 0])
    else:
        rings = jnp.arange(tokens.shape[0], dtype=jnp.int32)
        step, cached_positions = prefill_metadata(cache, block_table, positions, rings, first_chunk)
    for layer, entries in zip(model.layers, cache.layers, strict=True):
        run = layer.attention.decode if tokens.shape[1] == 1 else layer.attention.prefill
        mixed, entries = run(x, rotation, entries, step)
        x = x + mixed
        layers.append(entries)
    return x, KVCache.of_layers(layers, cached_positions)


@pytest.mark.parametrize("mode", ["reference", pytest.param("tpu-interpret", marks=pytest.mark.slow)])
def test_attention_over_the_cache_is_the_plain_models(mode: str) -> None:
    """Both layers, float32: prompts of unequal length in two chunks, then single tokens, one slot idle."""
    model = random_model(KERNEL_CONFIG)
    generator = np.random.default_rng(7)
    lengths, singles = (33, 9), 4
    prompts = [generator.integers(0, CONFIG.vocabulary_size, (1, length + singles)) for length in lengths]
    expected = [plain_attention(model, prompt)[0] for prompt in prompts]
    chunks = [np.full((3, 20), EMPTY, np.int32), np.full((3, 20), EMPTY, np.int32)]
    for row, length in enumerate(lengths):
        for begin, chunk in zip((0, 20), chunks, strict=True):
            count = min(20, max(0, length - begin))
            chunk[row, :count] = np.arange(begin, begin + count)
    steps = [
        *chunks,
        *(np.array([[length + step] for length in lengths] + [[EMPTY]], np.int32) for step in range(singles)),
    ]
    block_table = generator.permutation(9).astype(np.int32).reshape(3, 3)
    shape = CacheShape(pages=9, page_size=16, slots=3, ring=32, snapshots=1)
    cache = new_cache(KERNEL_CONFIG, shape, jnp.float32)
    graph, state = nnx.split(Transformer(model))
    seen = 0
    for number, positions in enumerate(steps):
        tokens = np.zeros(positions.shape, np.int32)
        for row, prompt in enumerate(prompts):
            real = positions[row] >= 0
            tokens[row, real] = prompt[0, positions[row, real]]
        with using(mode):
            x, cache = served_attention(
                graph, state, tokens, positions, cache, block_table, np.full(3, number == 0)
            )
        for row, right in enumerate(expected):
            real = positions[row] >= 0
            seen += int(real.sum())
            np.testing.assert_allclose(x[row, real], right[positions[row, real]], rtol=1e-5, atol=1e-5)
    assert seen == sum(lengths) + singles * len(lengths)
