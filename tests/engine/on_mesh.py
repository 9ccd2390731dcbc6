"""Run in processes of their own: one model on a mesh of simulated CPU devices, perhaps of several processes.

    on_mesh.py FOLDER DATA EXPERT TENSOR OUT.npz [PROCESS PROCESSES PORT]

Process 0 writes what the engine generates to OUT.npz, and on a mesh of a single process the logits of whole
prompts.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from checkpoints import open_checkpoint
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.model import Transformer, load
from gptoss_jax.model.kv_cache import new_cache
from gptoss_jax.sharding import make_mesh, parameter_split, split
from gptoss_jax.sizes import CacheShape, MeshShape

LENGTH, PAGE = 40, 16


def requests(vocabulary: int) -> list[Request]:
    """Greedy and sampled, prompts from one token to several chunks; two share a beginning."""
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, vocabulary, length).tolist() for length in (1, 15, 17, 64, 90)]
    prompts.append(prompts[-1][:60] + prompts[2])
    greedy = SamplingParams(temperature=0, max_tokens=8, logprobs=20)
    sampled = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=12, n=2)
    return [
        *(Request(f"greedy {number}", prompt, greedy) for number, prompt in enumerate(prompts)),
        Request("sampled", prompts[2], sampled),
        Request("penalised", prompts[3], SamplingParams(seed=1, repetition_penalty=1.3, max_tokens=12)),
    ]


def prompts(vocabulary: int) -> np.ndarray:
    """Four random ones, int32 [4, 40]."""
    return np.random.default_rng(4).integers(0, vocabulary, (4, LENGTH)).astype(np.int32)


def prefill_logits(model: Transformer, mesh: jax.sharding.Mesh) -> np.ndarray:
    """Logits [4, 40, V] of the prompts, as the mesh computes them into an empty cache."""
    graph, state = nnx.split(model)
    shards = mesh.shape["data"] * mesh.shape["expert"]
    rows = max(shards, 4)  # at least one for each batch shard
    tokens = np.tile(prompts(model.config.vocabulary_size), (rows // 4, 1))
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (rows, 1))
    heads = mesh.shape["tensor"]

    def run(state: nnx.State, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        model, own = nnx.merge(graph, state), tokens.shape[0]
        pages = -(-LENGTH // PAGE)
        shape = CacheShape(own * pages, PAGE, own, LENGTH)
        config = dataclasses.replace(model.config, num_kv_heads=model.config.num_kv_heads // heads)
        block_table = jnp.arange(own * pages, dtype=jnp.int32).reshape(own, pages)
        rings, first_chunk = jnp.arange(own, dtype=jnp.int32), jnp.ones(own, bool)
        cache = new_cache(config, shape, model.dtype)
        return model.logits(model.prefill(tokens, positions, cache, block_table, rings, first_chunk)[0])

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
    of_one_process = mesh.size > 1 and not sys.argv[6:]
    logits = prefill_logits(model, mesh) if of_one_process else np.zeros(0)
    with Engine(
        model, [3], mesh=mesh, slots=8, max_length=128, page_size=16, prefill_tokens=64, decode_steps=5
    ) as engine:
        if not engine.is_leader:
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
