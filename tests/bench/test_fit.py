"""The engine's real steps through the TPU compiler: they fit, copy nothing large and hold nothing twice.

The slow run compiles decoding at full depth on one device and on a mesh, each where memory is scarcest, and
prompts where it is scarcest of all; the other steps at a few layers, and computes the memory of the other
layers. The quick run compiles two layers of half the width, with all kernels. Nothing here runs on a TPU.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B, ModelConfig
from checkpoints.parameters import parameter_specs
from gptoss_jax.bench import fit
from gptoss_jax.bench.fit import (
    TARGETS,
    TOPOLOGIES,
    CompileError,
    EngineOnTPU,
    StepError,
    Target,
    described_devices,
    large_copies,
)
from gptoss_jax.engine.memory import step_bytes
from gptoss_jax.engine.options import EngineOptions
from gptoss_jax.sharding import make_mesh
from gptoss_jax.sizes import MeshShape
from tests.memory import give_memory_back

pytest.importorskip("libtpu", reason="the TPU compiler (libtpu) is not installed")
recent = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="the figures are those of newer compilers: jax 0.11 and later"
)

GIB = 2**30
CONFIGS = {"20b": GPT_OSS_20B, "120b": GPT_OSS_120B}
CONTEXT = 8192
FOUR_MACHINES = "v5e:4x4"
SCARCEST = "20b v5e:1x1"
FULL_DEPTH = {("decode", SCARCEST), ("decode", "120b v5e:2x4"), ("prefill", SCARCEST)}
FEW_LAYERS = 2
HALF = 1376
"""The quick run's hidden and intermediate size: about half of 2,880, and like it not a multiple of 128."""


@pytest.fixture(autouse=True)
def memory_given_back_after_each_test() -> Iterator[None]:
    """A program of full depth takes about a GB in this process, which else keeps it."""
    yield
    give_memory_back()


@functools.cache
def engine_on(target: Target, config: ModelConfig, prefill_tokens: int = 2048) -> EngineOnTPU:
    options = EngineOptions(slots=target.slots, max_length=CONTEXT, prefill_tokens=prefill_tokens)
    return EngineOnTPU(config, target.topology, options)


def name_of(target: Target) -> str:
    return f"{target.model} {target.topology}"


def held_bytes(target: Target, config: ModelConfig, shape: MeshShape) -> int:
    """The bytes that a device must hold, computed by hand.

    Published weights; keys and values of all slots; rings of the window and 16 tokens for the slots, 16
    snapshots and the dummy.
    """
    total = 0
    for name, spec in parameter_specs(config).items():
        share = 1
        if ".experts." in name:
            share = shape.expert * shape.tensor
        elif "embedding" in name or any(part in name for part in ("query", "key", "value", "output.weight")):
            share = shape.tensor
        total += spec.num_bytes // share
    slots, token = target.slots // (shape.data * shape.expert), 2 * 2 * 8 * 64 // shape.tensor
    half = config.num_layers // 2
    return total + half * token * (slots * CONTEXT + (slots + 17) * (128 + 16))


@recent
@pytest.mark.slow
@pytest.mark.parametrize("step", ["decode", "prefill"])
@pytest.mark.parametrize(
    "target", [target for target in TARGETS if target.topology != FOUR_MACHINES], ids=name_of
)
def test_a_step_fits_copies_nothing_large_and_holds_nothing_twice(target: Target, step: str) -> None:
    full = CONFIGS[target.model]
    if (step, name_of(target)) in FULL_DEPTH:
        check_step(target, full, step)
        return
    shallow = dataclasses.replace(full, num_layers=FEW_LAYERS)
    memory = check_step(target, shallow, step)
    shape = engine_on(target, shallow).shape
    deeper = 1.03 * (held_bytes(target, full, shape) - held_bytes(target, shallow, shape))
    assert memory.spare - deeper >= 0.3 * GIB, memory


@recent
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_a_step_of_two_layers_copies_nothing_large_and_holds_nothing_twice(step: str) -> None:
    target = next(target for target in TARGETS if name_of(target) == SCARCEST)
    config = dataclasses.replace(GPT_OSS_20B, num_layers=2, hidden_size=HALF, intermediate_size=HALF)
    check_step(target, config, step, prefill_tokens=256)


def check_step(target: Target, config: ModelConfig, step: str, prefill_tokens: int = 2048) -> fit.StepMemory:
    engine = engine_on(target, config, prefill_tokens)
    bucket = engine.layout.buckets[-1]
    assert bucket.rows * bucket.tokens == prefill_tokens
    memory = engine.measure_decode() if step == "decode" else engine.measure_prefill(bucket)
    assert memory.limit - memory.peak >= 0.3 * GIB, memory
    assert memory.unaliased == 0, memory
    assert memory.copies == ()
    retiled = [f"bf16[{201_088 // 2},2880]"] if engine.chip == "7x" and step == "decode" else []
    assert [re.search(r"\w+\[[\d,]+\]", copy)[0] for copy in memory.retiled] == retiled
    if step == "decode":
        assert 1 < memory.arguments / held_bytes(target, config, engine.shape) < 1.03
        assert memory.resident == memory.arguments
    assert memory.complaints() == []
    # What the engine sets aside before it allocates anything is enough.
    assert memory.temporaries + memory.outputs <= step_bytes(
        config, engine.shape, engine.layout, engine.shapes.form
    )
    return memory


@recent
@pytest.mark.slow
def test_a_step_over_four_machines_compiles() -> None:
    config = dataclasses.replace(GPT_OSS_120B, num_layers=FEW_LAYERS)
    options = EngineOptions(slots=64, max_length=CONTEXT, prefill_tokens=2048)
    engine = EngineOnTPU(config, FOUR_MACHINES, options)
    assert engine.shape == MeshShape(expert=2, tensor=8)
    reserve = step_bytes(config, engine.shape, engine.layout, engine.shapes.form)
    for step in engine.measure():
        assert step.complaints() == []
        assert step.temporaries + step.outputs <= reserve


def on_one_device(*shape: int, dtype: jnp.dtype = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    mesh = Mesh(described_devices("v5e:1x1"), ("one",))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))


def test_a_large_copy_is_found_in_a_program() -> None:
    # The compiler lays an embedding of 2,880 columns out column by column, so looking up rows copies it.
    def look_up(weight: jax.Array, tokens: jax.Array) -> jax.Array:
        return weight[tokens]

    tokens = on_one_device(8, dtype=jnp.int32)
    texts = [
        jax.jit(look_up).lower(on_one_device(50_000, columns), tokens).compile().as_text()
        for columns in (2880, 2944)
    ]
    copies = [list(large_copies(text)) for text in texts]
    assert [len(found) for found in copies] == [1, 0]
    assert "bf16[50000,2880]" in copies[0][0]
    assert list(large_copies(texts[0], 2 * 50_000 * 2880)) == []


def test_complaints_name_what_is_wrong_with_a_step() -> None:
    good = fit.StepMemory("decode", 10 * GIB, 10 * GIB, GIB, 0, 10 * GIB, 12 * GIB, (), (), 0, 1.0, 1.0)
    assert good.complaints() == []
    for change, complaint in (
        ({"limit": 11 * GIB}, "0.00 GiB are free: there must be at least 0.3"),
        ({"arguments": 11 * GIB}, "the arguments are padded by 10.0%: at most 3% is allowed"),
        ({"unaliased": 2}, "2 arrays of the cache and the slots are held twice"),
        ({"copies": ("copy.1 bf16[9]",)}, "copies copy.1 bf16[9]"),
    ):
        assert dataclasses.replace(good, **change).complaints() == [complaint]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "20b", "--topology", "v5e:32x32"],
            "topology is 'v5e:32x32': it must be one of v5e:1x1, ",
        ),
        (["--model", "20b"], "--model and --topology go together"),
        (["--model", "20b", "--topology", "v5e:1x1", "--batch", "0"], "slots is 0"),
        (["--model", "20b", "--topology", "v5e:1x1", "--context", "1"], "max_length is 1"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_without_the_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        CompileError, match=r"libtpu, the TPU compiler, is not installed here: pip install libtpu"
    ):
        described_devices("v5e:2x4")


def test_eight_chips_are_one_machine() -> None:
    for topology, machines in (("v5e:2x4", 1), ("v6e:2x4", 1), ("v5e:4x4", 4), ("v5p:2x2x4", 4)):
        assert len({device.process_index for device in described_devices(topology)}) == machines


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_slice_has_a_mesh(topology: str) -> None:
    for config in CONFIGS.values():
        devices = described_devices(topology)
        mesh = make_mesh(config, devices=devices)
        assert sorted(device.id for device in mesh.devices.flat) == sorted(device.id for device in devices)


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_refused_with_the_reason() -> None:
    config = dataclasses.replace(GPT_OSS_20B, num_layers=2)
    engine = EngineOnTPU(config, "v5e:1x1", EngineOptions(slots=64, max_length=131_072, prefill_tokens=64))
    with pytest.raises(
        StepError, match=r"prefill 1 x 64: RESOURCE_EXHAUSTED[^\n]*exceeds available HBM \(15.75G\)"
    ):
        engine.measure_prefill(engine.layout.buckets[-1])
