"""From a checkpoint to a model: the checkpoint's parameter names are the paths of the model's state."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.typing import DTypeLike

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from gptoss_jax.model.moe import Arrangements, Experts, TiledExperts
from gptoss_jax.model.transformer import Transformer
from gptoss_jax.sharding import TENSOR, padded_vocabulary, parameter_split
from pallas_kernels.expert_matmul import form_for
from pallas_kernels.expert_matmul.tiling import Arrangement
from pallas_kernels.mxfp4.tiled import LANES, Form
from pallas_kernels.platform import choose

_INTO_HEADS = tuple(f"attention.{name}.weight" for name in ("query", "key", "value"))


def load(
    checkpoint: Checkpoint | Path | str, dtype: DTypeLike = jnp.float32, mesh: Mesh | None = None
) -> Transformer:
    """Reads a checkpoint into a model that computes in `dtype` (float32 or bfloat16).

    `mesh`: the devices it is spread over, of `gptoss_jax.sharding` (None: it lies on one); a process reads
    only what its own devices hold. Where the TPU kernels are going to run, the experts are rearranged for
    them. Raises `checkpoints.CheckpointError` if the checkpoint is not a gpt-oss model.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    choice = choose("expert_mlp", ("reference", "tpu", "gpu"))
    on_tpu = choice.implementation == "tpu"
    padded = padded_shapes(checkpoint.config, mesh, on_tpu)
    shardings = None
    if mesh is not None:

        def shardings(name: str) -> NamedSharding:
            return NamedSharding(mesh, parameter_split(name))

    model = with_parameters(checkpoint.config, checkpoint.load(shardings, dtype, padded), dtype)
    if on_tpu:
        tile_experts_of(model, form_for(choice.chip), mesh)
    return model


def padded_shapes(
    config: ModelConfig, mesh: Mesh | AbstractMesh | None, on_tpu: bool
) -> dict[str, tuple[int, ...]]:
    """The shapes of parameters that are stored with zeros behind them: parameter name → shape.

    The vocabulary is padded until the mesh divides it. A TPU lays an array out such that the least of it is
    padding, which for rows of 2,880 columns would be column by column: every step would first copy the
    embedding to look something up, and the maps to queries, keys and values to give them their heads.
    """
    specs = parameter_specs(config)
    rows = padded_vocabulary(config, 1 if mesh is None else mesh.shape[TENSOR])
    shapes = {name: (rows, config.hidden_size) for name in ("embedding.weight", "unembedding.weight")}
    if on_tpu:
        columns = -(-config.hidden_size // LANES) * LANES
        shapes["embedding.weight"] = rows, columns
        heads = [name for name in specs if name.endswith(_INTO_HEADS)]
        shapes |= {name: (specs[name].shape[0], columns) for name in heads}
    return {name: shape for name, shape in shapes.items() if shape != specs[name].shape}


def tile_experts_of(
    model: Transformer, form: Form, mesh: Mesh | None = None, arrangements: Arrangements | None = None
) -> None:
    """Rearranges the experts of a model for the TPU kernel, layer by layer, so that memory holds one layer
    twice at most."""
    for layer in model.layers:
        if isinstance(layer.moe.experts, Experts):
            layer.moe.experts = TiledExperts(layer.moe.experts, form, mesh, arrangements)


def abstract_model(
    config: ModelConfig, dtype: DTypeLike, mesh: Mesh | AbstractMesh, form: Form | None = None
) -> Transformer:
    """The model that `load` makes, with a `jax.ShapeDtypeStruct` on the mesh in place of each array.

    `form`: that of experts rearranged for the TPU kernel, their scales narrow; None leaves them as published.
    """
    padded = padded_shapes(config, mesh, form is not None)

    def build() -> Transformer:
        parameters = {
            name: jnp.zeros(padded.get(name, spec.shape), spec.dtype if spec.dtype == jnp.uint8 else dtype)
            for name, spec in parameter_specs(config).items()
        }
        model = with_parameters(config, parameters, dtype)
        if form is not None:
            tile_experts_of(model, form, arrangements=(Arrangement(form, False),) * 2)
        return model

    graph, state = nnx.split(nnx.eval_shape(build))

    def place(path: tuple[Hashable, ...], leaf: nnx.Variable) -> nnx.Variable:
        shape = leaf.get_value()
        where = NamedSharding(mesh, parameter_split(".".join(map(str, path))))
        return leaf.replace(jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where))

    leaves = [(path, place(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def with_parameters(config: ModelConfig, parameters: dict[str, jax.Array], dtype: DTypeLike) -> Transformer:
    """A model around existing arrays, named as in `checkpoints.parameters.parameter_specs`."""
    abstract = nnx.eval_shape(lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    leaves = [
        (path, leaf.replace(parameters[".".join(map(str, path))])) for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))
