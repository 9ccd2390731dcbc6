"""The model to measure: from a checkpoint, or with random weights that are made on the device."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from checkpoints import open_checkpoint
from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from gptoss_jax.engine import Engine
from gptoss_jax.model import Transformer, load
from gptoss_jax.model.loading import padded_shapes, tile_experts_of, with_parameters
from gptoss_jax.sharding import make_mesh, parameter_split
from pallas_kernels.expert_matmul import code_format_for
from pallas_kernels.platform import choose

if TYPE_CHECKING:
    from harmony import HarmonyEncoding

_SCALES = (118, 124)
"""E8M0 bytes from 118 to 123, the upper bound excluded: 2^-9 … 2^-4, the range of the published weights."""


@dataclasses.dataclass(frozen=True)
class BenchTarget:
    """A model on its mesh, and what its engines need.

    encoding: None if it cannot be loaded; the part `grammar` is then left out. trained: True if the weights
    are trained; False if they are random.
    """

    name: str
    model: Transformer
    mesh: Mesh
    encoding: HarmonyEncoding | None
    trained: bool

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return self.model.config

    def engine(self, **options: Any) -> Engine:
        """A new engine of the model; `options` are those of `Engine`."""
        encoding = self.encoding
        stops = (
            () if encoding is None else [*encoding.stop_tokens_for_assistant_actions(), encoding.end_of_text]
        )
        return Engine(self.model, stops, encoding=encoding, mesh=self.mesh, **options)

    def tokens(self, generator: np.random.Generator, count: int) -> list[int]:
        """`count` random tokens of the vocabulary."""
        drawn: list[int] = generator.integers(0, self.config.vocabulary_size, count).tolist()
        return drawn


def checkpoint_target(path: str | Path, dtype: DTypeLike | None = None) -> BenchTarget:
    """A checkpoint's model on all devices. Raises `checkpoints.CheckpointError` if it cannot be used."""
    from gptoss_jax.vocabulary import load_encoding_for

    checkpoint = open_checkpoint(path)
    encoding = load_encoding_for(checkpoint)
    mesh = make_mesh(checkpoint.config)
    model = load(checkpoint, dtype or _usual_dtype(), mesh)
    return BenchTarget(str(path), model, mesh, encoding, trained=str(path) == "tiny")


def random_target(name: str, config: ModelConfig, dtype: DTypeLike | None = None) -> BenchTarget:
    """A model with random weights on all devices; they are made there, without disk or host memory."""
    mesh = make_mesh(config)
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    on_tpu = choice.implementation == "tpu"
    dtype = jnp.dtype(dtype or _usual_dtype())
    padded = padded_shapes(config, mesh, on_tpu)
    parameters = {}
    for number, (key, spec) in enumerate(parameter_specs(config).items()):
        make = _maker(
            _kind(key),
            spec.shape,
            padded.get(key, spec.shape),
            NamedSharding(mesh, parameter_split(key)),
            dtype,
        )
        parameters[key] = make(jax.random.key(number))
    model = with_parameters(config, parameters, dtype)
    if on_tpu:
        tile_experts_of(model, code_format_for(choice.chip), mesh)
    return BenchTarget(name, model, mesh, _packaged_encoding(), trained=False)


def _usual_dtype() -> DTypeLike:
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def _kind(name: str) -> str:
    kinds = ("blocks", "scales", "norm.scale", "bias", "sinks", "embedding.weight")
    exact = [kind for kind in kinds if name.endswith(kind) and name != "unembedding.weight"]
    return exact[0] if exact else "weight"


@functools.cache
def _maker(kind: str, shape: tuple[int, ...], stored: tuple[int, ...], where: Any, dtype: Any) -> Any:
    """A compiled function from a random key to a parameter of `shape`, padded with zeros to `stored`."""

    def make(key: jax.Array) -> jax.Array:
        if kind == "blocks":
            return jax.random.bits(key, stored, jnp.uint8)
        if kind == "scales":
            return jax.random.randint(key, stored, *_SCALES, jnp.uint8)
        if kind == "norm.scale":
            return jnp.ones(stored, dtype)
        spread = {"bias": 0.1, "embedding.weight": 1.0, "sinks": 1.0}.get(kind, 1 / math.sqrt(shape[-1]))
        values = spread * jax.random.normal(key, shape, dtype)
        return jnp.pad(values, [(0, after - before) for before, after in zip(shape, stored, strict=True)])

    return jax.jit(make, out_shardings=where)


def _packaged_encoding() -> HarmonyEncoding | None:
    try:
        import llguidance  # noqa: F401

        import harmony
    except ImportError:
        return None
    return harmony.load_harmony_encoding()


def conversations(target: BenchTarget, count: int) -> Sequence[list[int]]:
    """`count` rendered prompts like those that the embedded checkpoint was trained on."""
    import random

    from gptoss_jax.tiny import dialogues, sums
    from gptoss_jax.tiny.splits import Split
    from harmony import Conversation, Role

    assert target.encoding is not None
    rng = random.Random(2024)
    prompts = []
    for index in range(count):
        effort = dialogues.EFFORTS[index % len(dialogues.EFFORTS)]
        messages = dialogues.sum_prompt(rng, effort, sums.draw(rng, Split.HELD_OUT))
        conversation = Conversation.from_messages(messages)
        prompts.append(target.encoding.render_conversation_for_completion(conversation, Role.ASSISTANT))
    return prompts
