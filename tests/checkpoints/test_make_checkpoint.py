"""The script that writes random checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints import CheckpointError, open_checkpoint
from checkpoints.config import GPT_OSS_20B, GPT_OSS_120B
from checkpoints.published_config import huggingface_config
from checkpoints.random import named_config
from tests.checkpoints.small_model import SMALL

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_checkpoint"


def test_a_configuration_file_and_options_shape_the_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(huggingface_config(SMALL)))
    options = ["--config", tmp_path / "config.json", "--layers", "2", "--rope-key", "rope_parameters"]
    result = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "out", *options], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.config.num_layers == 2 and checkpoint.config.hidden_size == 96
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "rope_parameters" in fields and "rope_scaling" not in fields


def test_the_published_models_have_names_and_anything_else_is_refused(tmp_path):
    assert (named_config("20b"), named_config("120b")) == (GPT_OSS_20B, GPT_OSS_120B)
    with pytest.raises(CheckpointError, match=r"config is 40b: it must be 20b, 120b or a config\.json"):
        named_config("40b")
