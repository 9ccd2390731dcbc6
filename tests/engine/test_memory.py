"""The memory plan: held against arrays that are really made, and against itself at every limit."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import open_checkpoint
from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B
from checkpoints.parameters import parameter_specs
from gptoss_jax.engine import Engine
from gptoss_jax.engine.host_memory import host_memory
from gptoss_jax.engine.layout import lay_out
from gptoss_jax.engine.memory import (
    EngineMemoryError,
    device_limit,
    parameter_bytes,
    plan,
    step_bytes,
    whole_table_bytes,
)
from gptoss_jax.engine.options import ON_CPUS, EngineOptions
from gptoss_jax.engine.shapes import EngineShapes
from gptoss_jax.engine.steps import Steps, empty_cache
from gptoss_jax.model import load
from gptoss_jax.sharding import MeshShape, make_mesh

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
    cache = empty_cache(config, layout, ONE)
    assert planned.parameters == nbytes(nnx.state(model))
    assert planned.pages * planned.page_bytes == nbytes(cache.pools)
    assert planned.rings == nbytes((cache.rings, cache.cached_positions))


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
    planned = small_plan(None)
    assert planned.pages == planned.max_pages == 8 * 8192 // 64
    assert "of what all slots can use" not in str(planned)


@given(st.integers(int(14.4 * GIB), 17 * GIB))
def test_the_most_pages_that_fit_are_planned(limit: int) -> None:
    planned = small_plan(limit)
    assert planned.total <= limit
    assert 8192 // 64 <= planned.pages <= planned.max_pages
    if planned.pages < planned.max_pages:
        assert planned.total + planned.page_bytes > limit
        assert f"({planned.pages / planned.max_pages:.0%} of what all slots can use)" in str(planned)


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


# The longest sequence


def test_without_a_max_length_the_longest_sequence_is_the_models_context() -> None:
    for config, gib in ((GPT_OSS_20B, 31.24), (GPT_OSS_120B, 95.7)):
        planned = plan(config, ONE, EngineOptions(slots=4), jnp.bfloat16, int(gib * GIB), "e5m2")
        assert planned.max_length == 131_072
        assert planned.pages >= 131_072 // 64
    half = dataclasses.replace(GPT_OSS_20B, context_length=65_536)
    assert plan(half, ONE, EngineOptions(), jnp.bfloat16, None, "e5m2").max_length == 65_536


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(int(13.9 * GIB), 17 * GIB))
def test_without_a_max_length_it_is_the_longest_that_fits(limit: int) -> None:
    options = EngineOptions(slots=2)
    planned = plan(GPT_OSS_20B, ONE, options, jnp.bfloat16, limit, "e5m2")
    assert planned.total <= limit
    assert planned.pages * 64 >= planned.max_length
    if planned.max_length < 131_072:
        assert planned.max_length % 64 == 0
        longer = dataclasses.replace(options, max_length=planned.max_length + 64)
        with pytest.raises(EngineMemoryError):
            plan(GPT_OSS_20B, ONE, longer, jnp.bfloat16, limit, "e5m2")


def test_without_a_max_length_a_sequence_fits_into_the_pages_asked_for() -> None:
    assert plan(GPT_OSS_20B, ONE, EngineOptions(pages=100), jnp.bfloat16, None).max_length == 6400


def test_what_does_not_even_hold_a_short_sequence_is_refused() -> None:
    with pytest.raises(EngineMemoryError, match=r"4 pages .*it fits with .*devices$"):
        plan(GPT_OSS_20B, ONE, EngineOptions(), jnp.bfloat16, 12 * GIB, "e5m2")


def test_the_embedded_model_keeps_what_it_was_made_for() -> None:
    engine = Engine(load("tiny", jnp.float32), [1])
    assert (engine.max_length, engine.options.max_length, engine.plan.pages) == (2048, 2048, 32 * 2048 // 64)


def test_defaults_are_bounded_on_cpus() -> None:
    config = dataclasses.replace(open_checkpoint("tiny").config, context_length=131_072)
    planned = plan(config, ONE, EngineOptions(), jnp.float32, 100 * GIB, defaults=ON_CPUS)
    assert (planned.max_length, planned.pages * planned.page_size) == (8192, 65_536)
    asked = plan(config, ONE, EngineOptions(max_length=100_000), jnp.float32, 100 * GIB, defaults=ON_CPUS)
    assert asked.pages == -(-100_000 // 64)


@pytest.mark.parametrize(("slots", "longest"), [(64, 131_072), (96, 131_072), (128, 98_304), (512, 24_576)])
def test_the_block_table_fits_into_scalar_memory(slots: int, longest: int) -> None:
    planned = plan(GPT_OSS_20B, ONE, EngineOptions(slots=slots), jnp.bfloat16, 90 * GIB, "e5m2")
    assert planned.max_length == longest
    assert plan(GPT_OSS_20B, ONE, EngineOptions(slots=slots), jnp.bfloat16, None).max_length == 131_072


@pytest.mark.slow
def test_a_block_table_beyond_scalar_memory_is_refused_with_what_fits() -> None:
    options = EngineOptions(slots=256, max_length=131_072)
    message = (
        r"^the block table for sequences of 131072 tokens needs 2\.53 MiB of each core's scalar memory and "
        r"may use 1\.00; it fits with slots=64 or with max_length=32768 or with page_size=256 "
        r"or with \d+ devices$"
    )
    with pytest.raises(EngineMemoryError, match=message):
        plan(GPT_OSS_20B, ONE, options, jnp.bfloat16, 90 * GIB, "e5m2")
    for change in ({"slots": 64}, {"max_length": 32_768}, {"page_size": 256}):
        changed = dataclasses.replace(options, **change)
        assert plan(GPT_OSS_20B, ONE, changed, jnp.bfloat16, 90 * GIB, "e5m2").scalars <= 2**20


# The memory of this machine


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_length", 10_000_000),
        ("max_length", 2**31 - 1),
        ("slots", 10**6),
        ("slots", 2**31 - 1),
        ("snapshots", 10**9),
        ("pages", 10**9),
        ("decode_steps", 10**9),
    ],
)
def test_a_cpu_refuses_what_the_machine_cannot_hold_at_once_and_in_one_line(option: str, value: int) -> None:
    model = load("tiny", jnp.float32)
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(EngineMemoryError, match=r"^the engine needs [^\n]*$"):
        Engine(model, [1], **{option: value})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 << 20
    assert time.process_time() - begin < 30, "hundreds of plans, not a loop over what was asked for"


def test_a_cpus_memory_is_a_part_of_the_machines() -> None:
    memory = host_memory()
    assert memory is not None
    assert device_limit(jax.devices("cpu")[0]) == memory * 9 // 10 // jax.local_device_count("cpu")
    meminfo = Path("/proc/meminfo").read_text()
    assert memory <= int(re.search(r"MemTotal: +(\d+) kB", meminfo)[1]) * 1024


GROUPS: dict[str, tuple[str, dict[str, str], int | None]] = {
    "version 2": ("0::/job/step", {"job/step/memory.max": "5000"}, 5000),
    "version 2, a limit further out": (
        "0::/job/step",
        {"job/step/memory.max": "max", "job/memory.max": "70"},
        70,
    ),
    "version 2, the smallest counts": ("0::/a/b", {"a/b/memory.max": "900", "a/memory.max": "800"}, 800),
    "version 2, in a container": ("0::/host/path", {"memory.max": "60"}, 60),
    "version 1": ("4:cpu,memory:/job\n3:pids:/", {"memory/job/memory.limit_in_bytes": "44"}, 44),
    "both": (
        "4:memory:/job\n0::/",
        {"memory/job/memory.limit_in_bytes": "9223372036854771712", "memory.max": "50"},
        50,
    ),
    "none": ("0::/", {}, None),
    "nonsense": ("what is this", {"memory.max": "5"}, None),
    "an empty file": ("", {"memory.max": "5"}, None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_memory_of_a_control_group_is_a_limit(name: str, tmp_path: Path) -> None:
    groups, files, expected = GROUPS[name]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    machine = host_memory(tmp_path / "nothing")
    assert machine is not None and machine > 1 << 28
    assert host_memory(tmp_path) == (machine if expected is None else expected)


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "max_length"), [(4, 8192), (32, 2048)])
def test_what_is_set_aside_for_the_steps_is_enough_on_a_cpu(slots: int, max_length: int) -> None:
    config = dataclasses.replace(
        GPT_OSS_20B, num_layers=2, num_experts=4, hidden_size=256, intermediate_size=128, vocabulary_size=4096
    )
    options = EngineOptions(slots=slots, max_length=max_length, prefill_tokens=512)
    mesh = make_mesh(config)
    layout = lay_out(options, config, ONE, jnp.float32)
    shapes = EngineShapes(config, mesh, layout, jnp.float32, None)
    steps = Steps(shapes.model, mesh, layout.decode_steps)
    reserve = step_bytes(config, ONE, layout, None) + whole_table_bytes(config, ONE, layout, jnp.float32)
    decode = steps.decode.lower(steps.parameters, shapes.cache, *shapes.decode_inputs())
    prefill = steps.prefill.lower(steps.parameters, shapes.cache, shapes.chunk(layout.buckets[-1]))
    for lowered in (decode, prefill):
        memory = lowered.compile().memory_analysis()
        assert memory.temp_size_in_bytes <= reserve
