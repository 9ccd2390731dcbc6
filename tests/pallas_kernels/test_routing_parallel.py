"""Experts spread over devices give what one device gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from pallas_kernels.routing import Route, local_experts, spread_experts

HERE = Path(__file__).parent


@pytest.mark.slow
def test_eight_devices_compute_what_one_does_and_drop_nothing() -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    script = HERE / "eight_devices_experts.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


def test_a_device_sees_its_own_experts_counted_from_zero_and_nobody_elses() -> None:
    experts = np.array([[0, 3], [5, 2], [8, 8]], np.int32)
    weights = np.array([[0.7, 0.3], [0.6, 0.4], [0.5, 0.5]], np.float32)
    local = local_experts(Route(experts, weights), 2, 3)
    assert local.experts.tolist() == [[3, 1], [3, 0], [3, 3]]
    np.testing.assert_array_equal(local.weights, weights)


def test_axes_that_do_not_divide_the_experts_are_refused() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("expert", "tensor"))
    route = Route(np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32))

    def run(x: jax.Array) -> jax.Array:
        return spread_experts(lambda x, _: x, x, route, 0, gather_axis="expert", reduce_axis="tensor")

    spec = PartitionSpec()
    message = "^0 experts do not divide over the 1 × 1 devices of the axes 'expert' and 'tensor'"
    with pytest.raises(ValueError, match=message):
        jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)(np.zeros((2, 4), np.float32))
