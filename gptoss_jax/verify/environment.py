"""What this installation is: versions, devices, and their memory."""

from __future__ import annotations

import collections
import platform
from importlib import metadata

import jax

from gptoss_jax.engine.host_memory import host_memory
from gptoss_jax.engine.memory import device_limit
from gptoss_jax.verify.rows import Check, Outcome
from pallas_kernels.platform import ENVIRONMENT_VARIABLE, choose

_PACKAGES = ("gptoss-jax", "jax", "jaxlib", "flax", "numpy", "libtpu", "jax-cuda12-plugin", "llguidance")


def versions() -> dict[str, str]:
    """Package → version of what is installed, and of Python."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def check(dtype: str) -> Check:
    """dtype: what the model computes in."""
    return Check(
        "environment",
        "jax sees these devices and can compute on them",
        "jax cannot use a device that it lists: reinstall jax for it (pip install 'gptoss-jax[tpu]' or "
        "'gptoss-jax[cuda]'), and look whether another process holds the device",
        lambda: _environment(dtype),
    )


def _environment(dtype: str) -> Outcome:
    devices = jax.devices()
    for device in jax.local_devices():
        total = int(jax.device_put(jax.numpy.arange(1000), device).sum())
        if total != 499_500:
            return Outcome(False, f"device {device.id} adds 0 ... 999 to {total}", "499500")
    kinds = collections.Counter(device.device_kind for device in devices)
    limit, memory = device_limit(jax.local_devices()[0]), host_memory()
    kernels = choose("expert_mlp", ("reference", "tpu", "gpu"))
    implementation = {"reference": "plain JAX", "tpu": "TPU kernels", "gpu": "GPU kernels"}
    on = implementation[kernels.implementation] + (", interpreted" if kernels.interpret else "")
    names = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    amount = "unknown memory" if limit is None else f"{limit / 2**30:.1f} GiB each"
    found = versions()
    lines = [
        "Versions: " + ", ".join(f"{name} {version}" for name, version in found.items()),
        f"Machine: {platform.system()} {platform.machine()}, host memory "
        + ("unknown" if memory is None else f"{memory / 2**30:.1f} GiB")
        + f", {jax.process_count()} process{'es' if jax.process_count() > 1 else ''}",
        f"Computes in {dtype}, with {on} ({ENVIRONMENT_VARIABLE} overrides)",
    ]
    details = {
        "versions": found,
        "devices": dict(kinds),
        "platform": devices[0].platform,
        "device_memory_bytes": limit,
        "host_memory_bytes": memory,
        "processes": jax.process_count(),
        "dtype": dtype,
        "kernels": kernels.implementation,
    }
    return Outcome(True, f"{names}, {amount}; {dtype}, {on}", "", details, lines)
