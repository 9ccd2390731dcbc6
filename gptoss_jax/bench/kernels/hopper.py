"""Lowering for a Hopper GPU on a machine without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

KERNEL_CALL = "xla.gpu.triton"
"""What a Triton kernel is called in a lowered program."""


def lower_for_hopper(function: Callable[..., Any], *arguments: Any) -> str:
    """The StableHLO of `function` on `arguments` (arrays or their shapes), kernels lowered for an H200."""
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = AbstractMesh((1,), ("gpu",), axis_types=(AxisType.Explicit,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
