"""The choice of the implementation, and the errors that the simulator must report."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import platform
from pallas_kernels.platform import choose, using


def test_a_cpu_runs_references() -> None:
    choice = choose("x", ("reference", "tpu", "gpu"))
    assert (choice.implementation, choice.interpret) == ("reference", False)


@pytest.mark.parametrize("backend", ["tpu", "gpu"])
def test_an_accelerator_runs_its_own_kernel_or_the_reference(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(platform, "_attached_chip", lambda: "v6e")
    assert choose("x", ("reference", "tpu", "gpu")).implementation == backend
    assert choose("x", ("reference",)).implementation == "reference"


def test_a_tpu_without_kernels_is_named_and_can_run_references(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldTpu:
        device_kind = "TPU v4"

    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(jax, "devices", lambda: [OldTpu()])
    platform._attached_chip.cache_clear()
    with pytest.raises(
        platform.PlatformError, match=r"^this TPU is a 'TPU v4': .*=reference to run without kernels$"
    ):
        choose("x", ("reference", "tpu"))
    with using("reference"):
        assert choose("x", ("reference", "tpu")).implementation == "reference"


def test_a_function_is_traced_again_under_another_setting() -> None:
    seen = []

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        seen.append(choose("x", ("reference", "tpu"))[::2])
        return x

    run(jnp.ones(1))
    with using("tpu-interpret", "7x"):
        run(jnp.ones(1))
        with using("tpu", "v5p"):
            run(jnp.ones(1))
    run(jnp.ones(1))
    assert seen == [("reference", "v5e"), ("tpu", "7x"), ("tpu", "v5p")]


def test_the_environment_sets_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTOSS_JAX_KERNELS", "tpu-interpret")
    assert choose("x", ("reference", "tpu"))[:2] == ("tpu", True)
    monkeypatch.setenv("GPTOSS_JAX_KERNELS", "fast")
    with pytest.raises(ValueError, match=r"^GPTOSS_JAX_KERNELS is 'fast': it must be one of auto, .*$"):
        choose("x", ("reference",))


def test_wrong_settings_are_named() -> None:
    with (
        pytest.raises(ValueError, match=r"^chip is 'v4': it must be one of v5e, v5p, v6e, 7x$"),
        using(chip="v4"),
    ):  # type: ignore[arg-type]
        pass
    with using("gpu"), pytest.raises(ValueError, match=r"^x has no gpu kernel: it has reference, tpu$"):
        choose("x", ("reference", "tpu"))


def test_each_choice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pallas_kernels"), using("tpu-interpret", "v6e"):
        choose("some operation", ("reference", "tpu"))
        choose("some operation", ("reference", "tpu"))
    assert caplog.messages == ["some operation: tpu for v6e (interpret)"]


def racing(x: jax.Array, *, wait: bool) -> jax.Array:
    """x, copied by a DMA that is awaited before or after it is used."""

    def kernel(source: jax.Ref, out: jax.Ref, buffer: jax.Ref, arrived: jax.Ref) -> None:
        copy = pltpu.make_async_copy(source, buffer, arrived)
        copy.start()
        if wait:
            copy.wait()
        out[...] = buffer[...]
        if not wait:
            copy.wait()

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
        interpret=choose("racing", ("tpu",)).interpret,
    )(x)


@pytest.mark.parametrize("wait", [True, False])
def test_the_simulator_tells_races(wait: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Newer versions of jax raise, older ones print."""
    raised = ""
    with using("tpu-simulate"):
        try:
            jax.block_until_ready(racing(jnp.ones((8, 128)), wait=wait))
        except Exception as error:
            raised = str(error)
    assert ("RACE" in raised + capsys.readouterr().out) == (not wait)
