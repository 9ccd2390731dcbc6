"""The expert computation on MXFP4 weights: two grouped matmuls with a clamped SwiGLU between them."""

from pallas_kernels.expert_matmul.reference import PackedLinear, clamped_swiglu, expert_mlp

__all__ = ["PackedLinear", "clamped_swiglu", "expert_mlp"]
