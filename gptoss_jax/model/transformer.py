"""The served model: the parameters of `gptoss_jax.model.gpt_oss`, run with a KV cache, kernels and a mesh."""

from __future__ import annotations

import jax
from flax import nnx

from gptoss_jax.model import gpt_oss
from gptoss_jax.model.attention import served_attention
from gptoss_jax.model.gpt_oss import rotations
from gptoss_jax.model.kv_cache import KVCache, decode_metadata, prefill_metadata
from gptoss_jax.model.layers import VocabParallelEmbedding, VocabParallelUnembedding
from gptoss_jax.model.moe import ExpertParallelMoE


class Layer(nnx.Module):
    """x + attention(x), then x + experts(x)."""

    def __init__(self, layer: gpt_oss.Layer, num_experts: int):
        self.attention = served_attention(layer.attention)
        self.moe = ExpertParallelMoE(layer.moe, num_experts)


class Transformer(nnx.Module):
    """The whole model, with the parameters of a plain model under the same names.

    On a mesh it runs inside `jax.shard_map` and sees one device's part of every array.
    """

    def __init__(self, model: gpt_oss.GptOss):
        self.config, self.dtype = model.config, model.dtype
        self.embedding = VocabParallelEmbedding(model.embedding, model.config.hidden_size)
        self.layers = nnx.List([Layer(layer, model.config.num_experts) for layer in model.layers])
        self.norm = model.norm
        self.unembedding = VocabParallelUnembedding(model.unembedding)

    def prefill(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: KVCache,
        block_table: jax.Array,
        rings: jax.Array,
        first_chunk: jax.Array,
    ) -> tuple[jax.Array, KVCache]:
        """Runs T new tokens of each of n sequences, which also see what the cache holds of their sequence.

        tokens int32 [n, T]. positions int32 [n, T]: consecutive, EMPTY after a row's tokens. block_table
        int32 [n, M]: the pages of each sequence. rings int32 [n]: the ring of each sequence. first_chunk bool
        [n]: True where the sequence starts with this chunk.

        Returns hidden states [n, T, D], the input of `logits`, and the cache with the new tokens.
        """
        chunk, cached_positions = prefill_metadata(cache, block_table, positions, rings, first_chunk)
        x, rotation, layers = self.embedding(tokens), rotations(positions, self.config), []
        for index, (layer, entries) in enumerate(zip(self.layers, cache.layers, strict=True)):
            with jax.named_scope(f"layer_{index}"):
                mixed, entries = layer.attention.prefill(x, rotation, entries, chunk)
                x = x + mixed
                x = x + layer.moe(x, positions >= 0)
            layers.append(entries)
        return self.norm(x), KVCache.of_layers(layers, cached_positions)

    def decode(
        self, tokens: jax.Array, positions: jax.Array, cache: KVCache, block_table: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """Runs one new token of each of the first B slots.

        tokens int32 [B]. positions int32 [B]: EMPTY for idle slots. block_table int32 [B, M]: the pages of
        each slot's sequence. Returns hidden states [B, D], the input of `logits`, and the cache with the new
        tokens.
        """
        step, cached_positions = decode_metadata(cache, block_table, positions)
        tokens, positions = tokens[:, None], positions[:, None]
        x, rotation, layers = self.embedding(tokens), rotations(positions, self.config), []
        for index, (layer, entries) in enumerate(zip(self.layers, cache.layers, strict=True)):
            with jax.named_scope(f"layer_{index}"):
                mixed, entries = layer.attention.decode(x, rotation, entries, step)
                x = x + mixed
                x = x + layer.moe(x, positions >= 0)
            layers.append(entries)
        return self.norm(x)[:, 0], KVCache.of_layers(layers, cached_positions)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states […, D] → float32 logits […, V].

        On a mesh, for this device's part of the vocabulary.
        """
        return self.unembedding(hidden)
