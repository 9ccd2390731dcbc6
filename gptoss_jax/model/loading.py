"""From a checkpoint to a model: the checkpoint's parameter names are the paths of the model's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.config import ModelConfig
from gptoss_jax.model.moe import Experts, TiledExperts
from gptoss_jax.model.transformer import Transformer
from pallas_kernels.expert_matmul import form_for
from pallas_kernels.mxfp4.tiled import Form
from pallas_kernels.platform import choose


def load(
    checkpoint: Checkpoint | Path | str,
    dtype: DTypeLike = jnp.float32,
    shardings: Callable[[str], jax.sharding.Sharding] | None = None,
) -> Transformer:
    """Reads a checkpoint into a model that computes in `dtype` (float32 or bfloat16).

    `shardings` maps a parameter's name to where it lives (None: the default device). Where the TPU kernels
    are going to run, the experts are rearranged for them. Raises `checkpoints.CheckpointError` if the
    checkpoint is not a gpt-oss model.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    model = with_parameters(checkpoint.config, checkpoint.load(shardings, dtype), dtype)
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    if choice.implementation == "tpu":
        tile_experts_of(model, form_for(choice.chip))
    return model


def tile_experts_of(model: Transformer, form: Form) -> None:
    """Rearranges the experts of a model for the TPU kernel, layer by layer, so that memory holds one layer
    twice at most."""
    for layer in model.layers:
        if isinstance(layer.moe.experts, Experts):
            layer.moe.experts = TiledExperts(layer.moe.experts, form)


def with_parameters(config: ModelConfig, parameters: dict[str, jax.Array], dtype: DTypeLike) -> Transformer:
    """A model around existing arrays, named as in `checkpoints.parameters.parameter_specs`."""
    abstract = nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    leaves = [
        (path, leaf.replace(parameters[".".join(map(str, path))])) for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))
