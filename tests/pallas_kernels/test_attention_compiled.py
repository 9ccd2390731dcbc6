"""Attention as the real compilers see it: the TPU kernels at the published shapes, alone and on eight
chips; the simulator's search for races; lowering for Hopper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gptoss_jax.bench.kernels.hopper import KERNEL_CALL, lower_for_hopper
from pallas_kernels.attention import (
    decode_pages,
    decode_ring,
    entry_layout,
    prefill,
    prefill_pages,
    store_entries,
)
from pallas_kernels.platform import Chip, using
from tests.pallas_kernels.marks import EVERY_CHIP, slow
from tests.pallas_kernels.test_attention_decode import Pages, Ring

HEADS, KV_HEADS, SIZE, WINDOW, PAGE = 64, 8, 64, 128, 128
TOPOLOGIES: dict[Chip, str] = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4", "7x": "tpu7x:2x2x1"}
"""Eight devices of each generation."""


def shapes(
    batch: int, length: int, columns: int, shards: int, stored: Any = jnp.bfloat16
) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Every operation at the published models' shapes: what to call, and shapes with their sharded axis."""
    slots = WINDOW + 16 * (2 // jnp.dtype(stored).itemsize)
    bfloat16, int32 = jnp.bfloat16, jnp.int32
    units, rows, lanes = entry_layout(KV_HEADS, SIZE, shards)
    table, sinks = ((batch, columns), int32, None), ((HEADS,), bfloat16, 0)
    pool = ((batch * columns, units, rows, PAGE, lanes), stored, 1)
    ring = [((4 * batch, units, rows, slots, lanes), stored, 1), ((batch, slots), int32, None)]
    q, each = ((batch, HEADS, SIZE), bfloat16, 1), ((batch,), int32, None)
    chunk, tokens = ((1, length, HEADS, SIZE), bfloat16, 2), ((1, length), int32, None)
    kv = ((1, length, KV_HEADS, SIZE), bfloat16, 2)
    one_ring = [((1, *shape[1:]), dtype, axis) for shape, dtype, axis in ring]
    return {
        "decode_pages": (decode_pages, [q, pool, table, each, sinks]),
        "decode_ring": (functools.partial(decode_ring, window=WINDOW), [q, *ring, each, sinks]),
        "prefill_pages": (prefill_pages, [chunk, pool, ((1, columns), int32, None), tokens, sinks]),
        "prefill": (
            functools.partial(prefill, window=WINDOW),
            [chunk, kv, kv, tokens, sinks, *one_ring],
        ),
    }


def mesh(chip: Chip, count: int) -> Mesh:
    pytest.importorskip("libtpu")
    devices = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[chip]).devices
    return Mesh(np.array(devices[:count]), ("tensor",))


def spec(rank: int, axis: int | None) -> PartitionSpec:
    return PartitionSpec(*("tensor" if place == axis else None for place in range(rank)))


@pytest.mark.parametrize("stored", ["bfloat16", slow("float8_e4m3fn")])
@pytest.mark.parametrize("operation", ["decode_pages", "decode_ring", "prefill_pages", "prefill"])
@pytest.mark.parametrize("count", [slow(1), 8], ids=["one chip", "heads split over eight"])
@pytest.mark.parametrize("chip", EVERY_CHIP)
def test_kernels_compile_and_copy_and_pad_no_cache(
    chip: Chip, count: int, operation: str, stored: str
) -> None:
    devices = mesh(chip, count)
    run, arguments = shapes(64, 256, 64, devices.size, stored)[operation]
    specs = tuple(spec(len(shape), axis) for shape, _, axis in arguments)
    args = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(devices, place))
        for (shape, dtype, _), place in zip(arguments, specs, strict=True)
    ]
    out = spec(len(arguments[0][0]), arguments[0][2])
    sharded = jax.shard_map(run, mesh=devices, in_specs=specs, out_specs=out, check_vma=False)
    with using("tpu", chip=chip):
        compiled = jax.jit(sharded).lower(*args).compile()
    held = [int(np.prod(arg.sharding.shard_shape(arg.shape))) * arg.dtype.itemsize for arg in args]
    memory = compiled.memory_analysis()
    if operation.startswith("decode"):
        assert memory.temp_size_in_bytes < max(held) / 2  # no cache is copied
    if operation != "prefill":
        assert memory.argument_size_in_bytes < 1.03 * sum(held)  # and none is padded


@pytest.mark.parametrize("chip", EVERY_CHIP)
@pytest.mark.parametrize("kind", ["pages", slow("rings")])
@pytest.mark.parametrize("stored", [slow("bfloat16"), "float8_e4m3fn"])
def test_storing_and_attending_in_a_loop_copies_no_pool(chip: Chip, kind: str, stored: str) -> None:
    """XLA's own scatter would copy: it needs the dimensions in another order than the kernels."""
    units, rows, lanes = entry_layout(KV_HEADS, SIZE)
    batch, columns = 8, 64
    place = NamedSharding(mesh(chip, 1), PartitionSpec())
    slots = WINDOW + (16 if stored == "bfloat16" else 32)
    length = PAGE if kind == "pages" else slots
    pool = jax.ShapeDtypeStruct((batch * columns, units, rows, length, lanes), stored, sharding=place)
    q = jax.ShapeDtypeStruct((batch, HEADS, SIZE), jnp.bfloat16, sharding=place)
    table = jax.ShapeDtypeStruct((batch, columns), jnp.int32, sharding=place)
    sinks = jax.ShapeDtypeStruct((HEADS,), jnp.bfloat16, sharding=place)

    def steps(pool: jax.Array, q: jax.Array, table: jax.Array, sinks: jax.Array) -> tuple[jax.Array, ...]:
        def step(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            pool, q = carry
            where = jnp.full(batch, index, jnp.int32)
            entries = q[:, : units * rows * lanes // SIZE].reshape(batch, units, rows, lanes)
            if kind == "pages":
                pool = store_entries(pool, entries, table[:, 0], where)
                return pool, decode_pages(q, pool, table, where + 1, sinks)
            pool = store_entries(pool, entries, jnp.arange(batch), where % slots)
            held = jnp.broadcast_to(jnp.arange(slots), (batch, slots))
            return pool, decode_ring(q, pool, held, where, sinks, window=WINDOW)

        return jax.lax.fori_loop(0, 4, step, (pool, q))

    with using("tpu", chip=chip):
        compiled = jax.jit(steps, donate_argnums=0).lower(pool, q, table, sinks).compile()
    memory = compiled.memory_analysis()
    size = pool.size * pool.dtype.itemsize
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 8


def test_layers_alike_are_lowered_once() -> None:
    """A kernel takes a second to lower, a model has 12 or 18 layers of each kind."""
    run, arguments = shapes(8, 1, 4, 1)["decode_pages"]
    q, *others = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments]

    def layers(q: jax.Array, *others: jax.Array) -> jax.Array:
        for _ in range(3):
            q = run(q, *others)
        return q

    with using("tpu", chip="v6e"):
        text = jax.jit(layers).trace(q, *others).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == 1
    assert text.count("call @decode_pages") == 3


@pytest.mark.parametrize("stored", ["bfloat16", slow("float8_e4m3fn")])
@pytest.mark.parametrize("operation", ["decode_pages", "decode_ring", "prefill_pages", "prefill"])
def test_kernels_lower_for_hopper_at_the_published_shapes(operation: str, stored: str) -> None:
    for batch in (1, 64):
        run, arguments = shapes(batch, 256, 64, 1, stored)[operation]

        def on_gpu(*args: jax.Array, run: Callable[..., jax.Array] = run) -> jax.Array:
            with using("gpu"):
                return run(*args)

        text = lower_for_hopper(
            on_gpu, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments)
        )
        assert text.count(KERNEL_CALL) == 1


@pytest.mark.slow
def test_the_simulator_finds_no_race_and_no_read_out_of_bounds() -> None:
    Pages((9, 0, 40, 3), page=4, columns=11, kv_heads=4, group=2, size=16).check("tpu-simulate")
    Ring((3, 40, -1, 7), window=6, width=8, kv_heads=4, group=2, size=16).check("tpu-simulate")


def test_pages_that_a_tpu_cannot_address_are_refused_in_one_line() -> None:
    shape = jax.ShapeDtypeStruct
    arguments = (
        shape((1, 8, 64), jnp.bfloat16),
        shape((4, 1, 1, 24, 128), jnp.bfloat16),
        shape((1, 4), jnp.int32),
        shape((1,), jnp.int32),
        shape((8,), jnp.bfloat16),
    )
    message = "^a page has 24 tokens: on TPUs it must be a multiple of 16"
    with using("tpu", chip="v5e"), pytest.raises(ValueError, match=message):
        jax.eval_shape(decode_pages, *arguments)
