"""Loads a checkpoint into a model. Parameter names are the paths in the model's state."""

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
from gptoss_jax.model.gpt_oss import GptOss
from gptoss_jax.model.moe import PackedExperts, TiledExperts, WeightLayouts
from gptoss_jax.model.transformer import Transformer
from gptoss_jax.sharding import parameter_split
from gptoss_jax.sizes import TENSOR, padded_vocabulary
from pallas_kernels.expert_matmul import code_format_for
from pallas_kernels.expert_matmul.tiling import WeightLayout
from pallas_kernels.mxfp4.tiled import LANES, CodeFormat
from pallas_kernels.platform import choose

_INTO_HEADS = tuple(f"attention.{name}.weight" for name in ("query", "key", "value"))


def load(
    checkpoint: Checkpoint | Path | str, dtype: DTypeLike = jnp.float32, mesh: Mesh | None = None
) -> Transformer:
    """Reads a checkpoint into a served model that computes in `dtype` (float32 or bfloat16).

    mesh: the devices of the model, as from `gptoss_jax.sharding.make_mesh`; None: a single device. A process
    reads only the parts of its own devices. If the TPU kernels will run, the experts are tiled for them.
    Raises `checkpoints.CheckpointError` if the checkpoint cannot be used.
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
        tile_experts_of(model, code_format_for(choice.chip), mesh)
    return model


def padded_shapes(
    config: ModelConfig, mesh: Mesh | AbstractMesh | None, on_tpu: bool
) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that are padded with zeros: parameter name → padded shape.

    The vocabulary is padded to a size that the mesh divides. On a TPU, columns are padded to whole lanes: XLA
    lays an array out with the least padding, which for rows of 2,880 numbers is column by column. Every step
    would then copy the embedding to look up its rows, and the query, key and value projections to split their
    heads.
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
    model: Transformer, form: CodeFormat, mesh: Mesh | None = None, layouts: WeightLayouts | None = None
) -> None:
    """Tiles the experts of a model for the TPU kernel, in place.

    Works layer by layer, so memory holds at most one layer twice. layouts: those of gate_up and down; None
    chooses them by the scales' values.
    """
    for layer in model.layers:
        if isinstance(layer.moe.experts, PackedExperts):
            layer.moe.experts = TiledExperts(layer.moe.experts, form, mesh, layouts)


def abstract_model(
    config: ModelConfig, dtype: DTypeLike, mesh: Mesh | AbstractMesh, form: CodeFormat | None = None
) -> Transformer:
    """The model that `load` returns, with a `jax.ShapeDtypeStruct` on the mesh in place of each array.

    form: the code format of experts tiled for the TPU kernel, with narrow scales; None keeps the published
    layout.
    """
    padded = padded_shapes(config, mesh, form is not None)

    def build() -> Transformer:
        parameters = {
            name: jnp.zeros(padded.get(name, spec.shape), spec.dtype if spec.dtype == jnp.uint8 else dtype)
            for name, spec in parameter_specs(config).items()
        }
        model = with_parameters(config, parameters, dtype)
        if form is not None:
            tile_experts_of(model, form, layouts=(WeightLayout(form, False),) * 2)
        return model

    graph, state = nnx.split(nnx.eval_shape(build))

    def place(path: tuple[Hashable, ...], leaf: nnx.Variable) -> nnx.Variable:
        shape = leaf.get_value()
        where = NamedSharding(mesh, parameter_split(".".join(map(str, path))))
        return leaf.replace(jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where))

    leaves = [(path, place(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def load_plain(checkpoint: Checkpoint | Path | str, dtype: DTypeLike = jnp.float32) -> GptOss:
    """Reads a checkpoint into the plain model, on one device.

    Raises `checkpoints.CheckpointError` if the checkpoint cannot be used.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    return plain_with_parameters(checkpoint.config, checkpoint.load(None, dtype), dtype)


def with_parameters(config: ModelConfig, parameters: dict[str, jax.Array], dtype: DTypeLike) -> Transformer:
    """The served model around existing arrays, named as in `checkpoints.parameters.parameter_specs`."""
    return Transformer(plain_with_parameters(config, parameters, dtype))


def plain_with_parameters(config: ModelConfig, parameters: dict[str, jax.Array], dtype: DTypeLike) -> GptOss:
    """The plain model around existing arrays, named as in `checkpoints.parameters.parameter_specs`."""
    abstract = nnx.eval_shape(lambda: GptOss(config, dtype=dtype, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    leaves = [
        (path, leaf.replace(parameters[".".join(map(str, path))])) for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))
