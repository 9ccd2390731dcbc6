"""Broken checkpoints are refused in one line, soon and in little memory, or are as good as whole ones."""

import dataclasses
import json
import random
import resource
import shutil
import signal

import numpy as np
import pytest

from checkpoints import CheckpointError, open_checkpoint
from checkpoints.convert import convert
from checkpoints.opening import TINY
from checkpoints.random import write_random
from gptoss_jax.cli import main
from gptoss_jax.vocabulary import load_encoding_for
from tests.checkpoints.broken_checkpoints import break_checkpoint
from tests.checkpoints.small_model import SMALL

SECONDS = 10  # longer than this is a hang
KIBIBYTES = 1 << 20
USED = {  # field of config.json → field of ModelConfig, where a change makes another model, not a broken one
    "sliding_window": "sliding_window",
    "num_experts_per_tok": "experts_per_token",
    "experts_per_token": "experts_per_token",
    "rope_theta": "rope_theta",
    "swiglu_limit": "swiglu_limit",
    "rms_norm_eps": "norm_epsilon",
    "max_position_embeddings": "context_length",
    "initial_context_length": "yarn_original_length",
    "rope_scaling_factor": "yarn_factor",
    "rope_ntk_alpha": "yarn_beta_slow",
    "rope_ntk_beta": "yarn_beta_fast",
    "original_max_position_embeddings": "yarn_original_length",
    "factor": "yarn_factor",
    "beta_slow": "yarn_beta_slow",
    "beta_fast": "yarn_beta_fast",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Whole checkpoints of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    config = dataclasses.replace(SMALL, num_layers=2)
    write_random(folder / "huggingface", config, 3, shard_bytes=100_000)
    write_random(folder / "parameters", config, 3, rope_key="rope_parameters")
    write_random(folder / "original", config, 3, "original")
    convert(folder / "huggingface", folder / "converted", progress=False)
    shutil.copytree(TINY, folder / "tiny")
    return sorted(folder.iterdir())


def hang(*_):
    raise AssertionError(f"not done after {SECONDS} seconds")


def judge(folder, whole, whole_config):
    """Opens a folder as users do.

    True: it was accepted, and is the whole checkpoint or another valid one. False: it was refused in one
    line.
    """
    try:
        checkpoint = open_checkpoint(folder)
        encoding = load_encoding_for(checkpoint) if checkpoint.vocabulary else None
    except CheckpointError as error:
        message = str(error)
        assert "\n" not in message and len(message) < 6000, message
        return False
    for name, array in checkpoint.load().items():
        np.testing.assert_array_equal(np.asarray(array), whole[name], err_msg=name)
    if encoding is not None and "tiny" in str(folder):
        assert 2040 in encoding.stop_tokens() and len(encoding.ordinary_tokens) == 2038
    changed = {
        field.name
        for field in dataclasses.fields(checkpoint.config)
        if getattr(checkpoint.config, field.name) != getattr(whole_config, field.name)
    }
    fields = json.loads(
        next(
            folder / name
            for name in ("checkpoint.json", "config.json", "original/config.json")
            if (folder / name).exists()
        ).read_text()
    )
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or fields.get("config") or {}
    for name, value in (fields | rope).items():
        field = USED.get(name, name)
        if field in changed and value == getattr(checkpoint.config, field):
            changed.discard(field)
    if fields.get("model_type") is None and "rope_scaling_factor" in fields:
        changed.discard("context_length")  # a product of two others
    if "max_position_embeddings" not in fields or fields["max_position_embeddings"] is None:
        changed.discard("context_length")
    for optional in ("swiglu_limit", "rms_norm_eps", "beta_fast", "beta_slow"):
        if (fields | rope).get(optional) is None:
            changed.discard(USED[optional])
    assert not changed, changed
    return True


def check(count, seed, sources, tmp_path, capfd):
    whole, configs = {}, {}
    for source in sources:
        checkpoint = open_checkpoint(source)
        whole[source.name] = {name: np.asarray(array) for name, array in checkpoint.load().items()}
        configs[source.name] = checkpoint.config
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, hang)
    taken = 0
    try:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            source = sources[number % len(sources)]
            folder = tmp_path / f"{number} {source.name}"
            faults = "while it was being broken"
            signal.alarm(SECONDS)
            try:
                faults = break_checkpoint(source, folder, rng)
                good = judge(folder, whole[source.name], configs[source.name])
                capfd.readouterr()
                code = main(["inspect", str(folder)])
                said = capfd.readouterr()
            except BaseException as error:
                error.add_note(f"number {number} of seed {seed}, {faults}")
                raise
            finally:
                signal.alarm(0)
            assert code in ((0, 1) if good else (1, 2)), (faults, code)
            assert "Traceback" not in said.err + said.out and said.err.count("\n") <= 1, (faults, said)
            taken += good
            shutil.rmtree(folder)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert taken < count // 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KIBIBYTES


def test_broken_checkpoints_are_refused_in_one_line(sources, tmp_path, capfd):
    check(60, 0, sources, tmp_path, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_broken_checkpoints_are_refused_in_one_line(sources, tmp_path, capfd, seed):
    check(100, seed, sources, tmp_path, capfd)
