"""MXFP4 → float32 or bfloat16, bit-exact, in plain JAX: the oracle of every kernel that decodes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.mxfp4.format import BLOCK_SIZE

_INFINITY = 0x7F80
_SMALLEST_NORMAL = 0x0080


def decode(blocks: jax.Array, scales: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """The weights that `blocks` and `scales` stand for: code value × 2^(scale − 127), exactly.

    Args:
        blocks: uint8 [..., K/2], two codes a byte.
        scales: uint8 [..., K/32].
        dtype: float32 or bfloat16. Every weight is a bfloat16 number, so both give the same values.

    Returns:
        [..., K] of `dtype`. Small scales give subnormal numbers (scale 0: multiples of 2^-128), never zeros;
        what is too large for either dtype (2^128 and more) is infinite. Scale 255 is no exception: it stands
        for 2^128, as in `torch.ldexp`, by which the published references decode (OpenAI's torch model and
        `convert_moe_packed_tensors` of transformers). The OCP specification reserves it for NaN; no published
        checkpoint uses it.

    Raises:
        ValueError: the shapes or dtypes do not belong together, or `dtype` is another.
    """
    blocks, scales = jnp.asarray(blocks), jnp.asarray(scales)
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"dtype is {dtype}: MXFP4 decodes to float32 or bfloat16")
    for name, array in (("blocks", blocks), ("scales", scales)):
        if array.dtype != jnp.uint8:
            raise ValueError(f"{name} are {array.dtype}: MXFP4 is stored as uint8")
    bytes_per_block = BLOCK_SIZE // 2
    if blocks.shape != (*scales.shape[:-1], scales.shape[-1] * bytes_per_block if scales.ndim else 0):
        raise ValueError(
            f"blocks {list(blocks.shape)} do not belong to scales {list(scales.shape)}: "
            f"they must be [..., K/2] and [..., K/{BLOCK_SIZE}]"
        )
    # [..., K/32, 16 bytes, 2 nibbles], each scale beside its block's codes.
    codes = blocks.reshape(*scales.shape, bytes_per_block, 1) >> jnp.array([0, 4], jnp.uint8)
    bits = bfloat16_bits(codes.astype(jnp.int32), scales[..., None, None].astype(jnp.int32))
    if dtype == jnp.float32:
        weights = jax.lax.bitcast_convert_type(bits << 16, jnp.float32)
    else:
        weights = jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)
    return weights.reshape(*blocks.shape[:-1], blocks.shape[-1] * 2)


def bfloat16_bits(codes: jax.Array, scales: jax.Array) -> jax.Array:
    """The bfloat16 patterns, as int32, of codes (int32, low four bits) times 2^(scales − 127) (int32).

    Made of integers because float arithmetic loses the subnormal numbers: XLA flushes them to zero.
    A code's magnitude m = 2·exponent + mantissa lands on bfloat16's exponent and top mantissa bit by one
    shift; only 0 and 0.5 (m = 1, the format's subnormal number) are exceptions.
    """
    magnitude = codes & 7
    bits = (scales << 7) + ((magnitude - 2) << 6)
    bits = jnp.where(magnitude == 1, (scales << 7) - 128, bits)
    # Below bfloat16's normal range (scales 0 and 1): multiples of 2^-133, m·2^-128 being 32·m of them.
    bits = jnp.where(bits < _SMALLEST_NORMAL, magnitude << (5 + (scales & 1)), bits)
    bits = jnp.where(magnitude == 0, 0, jnp.minimum(bits, _INFINITY))
    return bits | ((codes & 8) << 12)
