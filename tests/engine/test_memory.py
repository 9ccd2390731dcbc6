"""The memory plan: held against arrays that are really made, and against itself at every limit."""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B
from checkpoints.parameters import parameter_specs
from gptoss_jax.cache import new_cache
from gptoss_jax.engine.memory import EngineMemoryError, device_limit, parameter_bytes, plan
from gptoss_jax.engine.options import EngineOptions, lay_out
from gptoss_jax.model import load
from gptoss_jax.sharding import MeshShape

GIB = 2**30
ONE = MeshShape()
OPTIONS = EngineOptions(slots=8, max_length=8192, prefill_tokens=2048)

small_plan = functools.partial(plan, GPT_OSS_20B, ONE, OPTIONS, jnp.bfloat16, form="e5m2")


def nbytes(arrays: object) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(arrays))


def test_planned_bytes_are_those_of_the_arrays() -> None:
    model = load("tiny", jnp.float32)
    config = model.config
    options = EngineOptions(slots=3, max_length=200, page_size=32, snapshots=2)
    planned = plan(config, ONE, options, jnp.float32, None)
    layout = lay_out(options, config, ONE, jnp.float32)
    cache = new_cache(config, layout.cache, layout.kv_dtype)
    assert planned.parameters == nbytes(nnx.state(model))
    assert planned.pages * planned.page_bytes == nbytes(cache.pools)
    assert planned.rings == nbytes((cache.rings, cache.held))


def test_parameters_are_spread_as_the_mesh_says() -> None:
    # Experts over expert · tensor, heads and vocabulary over tensor, all else everywhere: by hand, by name.
    shape = MeshShape(data=2, expert=2, tensor=4)
    expected = 0
    for name, spec in parameter_specs(GPT_OSS_120B).items():
        share = 1
        if ".experts." in name:
            share = 8
        elif "embedding" in name or re.search(r"\.(query|key|value|sinks|output\.weight)", name):
            share = 4
        expected += spec.num_bytes // share
    assert parameter_bytes(GPT_OSS_120B, shape, jnp.bfloat16, None) == expected


def test_a_page_is_keys_and_values_of_its_tokens_on_full_layers() -> None:
    full_layers, kv_heads, head_size, bfloat16 = 12, 8, 64, 2
    assert small_plan(None).page_bytes == full_layers * 2 * kv_heads * head_size * bfloat16 * 64
    eight_bit = dataclasses.replace(OPTIONS, kv_dtype="float8_e4m3fn")
    planned = plan(GPT_OSS_20B, ONE, eight_bit, jnp.bfloat16, None, "e5m2")
    assert planned.page_bytes * 2 == small_plan(None).page_bytes


def test_a_device_that_does_not_say_gets_all_pages() -> None:
    assert device_limit(jax.devices("cpu")[0]) is None
    planned = small_plan(None)
    assert planned.pages == planned.most_pages == 8 * 8192 // 64
    assert "of what all slots can use" not in str(planned)


@given(st.integers(int(14.4 * GIB), 17 * GIB))
def test_the_most_pages_that_fit_are_planned(limit: int) -> None:
    planned = small_plan(limit)
    assert planned.total <= limit
    assert 8192 // 64 <= planned.pages <= planned.most_pages
    if planned.pages < planned.most_pages:
        assert planned.total + planned.page_bytes > limit
        assert f"({planned.pages / planned.most_pages:.0%} of what all slots can use)" in str(planned)


def test_the_memory_option_is_a_limit_too() -> None:
    capped = dataclasses.replace(OPTIONS, memory=15 * GIB)
    for limit in (None, 20 * GIB, 15 * GIB):
        assert plan(GPT_OSS_20B, ONE, capped, jnp.bfloat16, limit, "e5m2") == small_plan(15 * GIB)


def test_pages_asked_for_are_planned_or_refused() -> None:
    asked = dataclasses.replace(OPTIONS, pages=500)
    assert plan(GPT_OSS_20B, ONE, asked, jnp.bfloat16, 16 * GIB, "e5m2").pages == 500
    most = small_plan(int(14.7 * GIB)).pages
    for pages in (most, most + 1):
        asked = dataclasses.replace(OPTIONS, pages=pages)
        if pages > most:
            with pytest.raises(EngineMemoryError, match=rf"{pages} pages .*it fits with pages left out"):
                plan(GPT_OSS_20B, ONE, asked, jnp.bfloat16, int(14.7 * GIB), "e5m2")
        else:
            assert plan(GPT_OSS_20B, ONE, asked, jnp.bfloat16, int(14.7 * GIB), "e5m2").pages == pages


@pytest.mark.parametrize(
    ("changes", "limit"),
    [({"max_length": 131_072}, 14.5), ({"slots": 256}, 14.5), ({"prefill_tokens": 8192}, 14.5), ({}, 12)],
)
def test_a_refusal_names_what_would_fit(changes: dict[str, int], limit: float) -> None:
    options = dataclasses.replace(OPTIONS, **changes)
    with pytest.raises(EngineMemoryError) as refusal:
        plan(GPT_OSS_20B, ONE, options, jnp.bfloat16, int(limit * GIB), "e5m2")
    message = str(refusal.value)
    assert "\n" not in message
    assert f"may use {limit:.2f}" in message
    for name in changes:
        assert f"{name}=" in message
    for name, value in re.findall(r"(\w+)=(\d+)", message):
        changed = dataclasses.replace(options, **{name: int(value)})
        assert plan(GPT_OSS_20B, ONE, changed, jnp.bfloat16, int(limit * GIB), "e5m2").pages >= 1
    assert re.search(r"with 2 devices$", message)
    two = MeshShape(tensor=2)
    assert plan(GPT_OSS_20B, two, options, jnp.bfloat16, int(limit * GIB), "e5m2").pages >= 1


def test_what_nothing_makes_fit_is_said_so() -> None:
    two_layers = dataclasses.replace(GPT_OSS_20B, num_layers=2)
    with pytest.raises(EngineMemoryError, match="no single option makes it fit"):
        plan(two_layers, ONE, OPTIONS, jnp.bfloat16, GIB // 8, "e5m2")


def test_loading_plans_like_the_checkpoint_says() -> None:
    # The tiny checkpoint's own bytes, as another way to the same number.
    config = open_checkpoint("tiny").config
    specs = parameter_specs(config).values()
    assert parameter_bytes(config, ONE, jnp.bfloat16, None) == sum(spec.num_bytes for spec in specs)
