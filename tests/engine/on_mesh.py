"""Run in processes of their own: one model on a mesh of simulated CPU devices, perhaps of several processes.

    on_mesh.py FOLDER DATA EXPERT TENSOR OUT.npz [PROCESS PROCESSES PORT]

Process 0 writes the logits of whole prompts and what the engine generates to OUT.npz.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from checkpoints import open_checkpoint
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.model import Transformer, load
from gptoss_jax.sharding import MeshShape, make_mesh, parameter_split, split

LENGTH = 40


def requests(vocabulary: int) -> list[Request]:
    """Greedy and sampled, prompts from one token to several chunks; two share a beginning."""
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, vocabulary, length).tolist() for length in (1, 2, 15, 17, 33, 64, 90)]
    prompts.append(prompts[-1][:60] + prompts[3])
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=20)
    sampled = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=20, n=2)
    return [
        *(Request(f"greedy {number}", prompt, greedy) for number, prompt in enumerate(prompts)),
        Request("sampled", prompts[4], sampled),
        Request("penalised", prompts[5], SamplingParams(seed=1, repetition_penalty=1.3, max_tokens=20)),
    ]


def whole_logits(model: Transformer, mesh: jax.sharding.Mesh) -> np.ndarray:
    """Logits [4, 40, V] of four random prompts, computed on the mesh without a cache."""
    graph, state = nnx.split(model)
    tokens = np.random.default_rng(4).integers(0, model.config.vocabulary_size, (4, LENGTH)).astype(np.int32)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (4, 1))
    shards = mesh.shape["data"] * mesh.shape["expert"]
    repeats = -(-shards // 4)  # at least a row for each batch shard
    tokens, positions = np.tile(tokens, (repeats, 1)), np.tile(positions, (repeats, 1))

    def run(state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state)
        return model.logits(model(tokens, positions))

    splits = nnx.from_flat_state(
        [
            (path, leaf.replace(parameter_split(".".join(map(str, path)))))
            for path, leaf in nnx.to_flat_state(state)
        ]
    )
    logits = jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(splits, split("batch"), split("batch")),
            out_specs=split("batch", None, "vocabulary"),
            check_vma=False,
        ),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )(state, tokens, positions)
    return np.asarray(logits)[:4, :, : model.config.vocabulary_size]


def main() -> None:
    folder, *sizes, out = sys.argv[1:6]
    if sys.argv[6:]:
        process, processes, port = map(int, sys.argv[6:])
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
    config = open_checkpoint(folder).config
    mesh = make_mesh(config, MeshShape(*map(int, sizes)))
    model = load(folder, jnp.float32, mesh)
    logits = whole_logits(model, mesh) if not sys.argv[6:] else np.zeros(0)
    with Engine(
        model, [3], mesh=mesh, slots=8, max_length=128, page_size=16, prefill_tokens=64, decode_steps=5
    ) as engine:
        if not engine.speaks:
            engine.follow()
            return
        found = {}
        for completion in engine.run(requests(config.vocabulary_size)):
            name = f"{completion.id}/{completion.sample}"
            found[name] = np.array(completion.tokens)
            if completion.logprobs:
                found[name + "/logprobs"] = np.array(
                    [[entry.chosen, *(value for _, value in entry.top)] for entry in completion.logprobs]
                )
        compiled = engine.compiled_programs
    np.savez(out, logits=logits, compiled=compiled, **found)


if __name__ == "__main__":
    main()
