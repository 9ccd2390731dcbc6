"""Lowers and compiles for a Hopper GPU on a machine without one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

KERNEL_CALL = "xla.gpu.triton"
"""The name of a Triton kernel's call in a lowered program."""

_H200 = """
gpu_device_info {
  name: "NVIDIA H200"
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0a"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  l2_cache_size: 52428800
  device_memory_size: 151397597184
  memory_bandwidth: 4800000000000
  device_address_bits: 64
  ecc_enabled: true
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
"""The description of the GPU for XLA (a GpuTargetConfigProto)."""


def lower_for_hopper(function: Callable[..., object], *arguments: object) -> str:
    """The StableHLO of `function` on `arguments` (arrays or their shapes), kernels lowered for an H200."""
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = AbstractMesh((1,), ("gpu",), axis_types=(AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), _without_triton_warning():
        traced = jax.jit(function).trace(*_on(mesh, arguments))
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def can_compile() -> bool:
    """Returns True if jax's compiler for NVIDIA GPUs is installed.

    It needs neither a GPU nor CUDA's libraries.
    """
    return any(importlib.util.find_spec(name) for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"))


def compile_for_hopper(function: Callable[..., object], *arguments: object) -> jax.stages.Compiled:
    """`function` on `arguments` (arrays or their shapes) compiled to machine code for an H200.

    Raises the compiler's errors, for example for too little shared memory or too few registers.
    """
    topology = topologies.get_topology_desc("H200", platform="cuda", target_config=_H200, topology="1x1x1")
    mesh = Mesh(np.array(topology.devices[:1]), ("gpu",))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), _without_triton_warning():
        return jax.jit(function).lower(*_on(mesh, arguments)).compile()


@contextmanager
def _without_triton_warning() -> Iterator[None]:
    """Hides jax 0.12.0.1's warning that Pallas' Triton backend is deprecated. Other warnings pass.

    Users need not act on it: the `cuda` extra ends at the newest jax that the kernels were lowered with.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


def _on(mesh: Mesh | AbstractMesh, arguments: Any) -> Any:
    """The shapes of the arguments as arrays replicated over a mesh."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), arguments
    )
