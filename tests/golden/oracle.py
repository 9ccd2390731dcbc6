"""The oracle: transformers' gpt-oss in its plainest form, on the CPU; needs torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

transformers.utils.logging.disable_progress_bar()


def load(folder: Path, dtype: torch.dtype) -> transformers.GptOssForCausalLM:
    """The model of a checkpoint in the Hugging Face layout, its experts dequantised."""
    model = transformers.GptOssForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )
    return model.eval()


@torch.no_grad()
def logits(model: transformers.GptOssForCausalLM, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of tokens at positions [B, T], both int32: float32 whatever the model computes in."""
    output = model(
        input_ids=torch.from_numpy(tokens).long(),
        position_ids=torch.from_numpy(positions).long(),
        use_cache=False,
    )
    return output.logits.float().numpy()


def frequencies(model: transformers.GptOssForCausalLM) -> np.ndarray:
    """RoPE's angle per position of each pair of dimensions, float32 [h/2]."""
    return model.model.rotary_emb.inv_freq.numpy()


def every_byte_at_every_scale() -> tuple[np.ndarray, np.ndarray]:
    """Blocks uint8 [256, 16, 16], every byte in each row, and scales uint8 [256, 16], row s all of s."""
    blocks = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(16, 16), (256, 16, 16))
    scales = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, 16))
    return np.ascontiguousarray(blocks), np.ascontiguousarray(scales)


def dequantise(blocks: np.ndarray, scales: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The bit patterns, uint32 or uint16 [rows, K], of the weights that transformers decodes from MXFP4.

    blocks uint8 [rows, K/32, 16], scales uint8 [rows, K/32]; dtype float32 or bfloat16.
    """
    # The function takes an axis of experts in front and gives [experts, K, rows].
    weights = convert_moe_packed_tensors(
        torch.from_numpy(blocks)[None], torch.from_numpy(scales)[None], dtype=dtype
    )[0].T.contiguous()
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    return weights.view(bits).numpy().view(np.uint32 if dtype == torch.float32 else np.uint16)
