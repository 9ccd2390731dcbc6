"""Reading and writing the published layouts, against the safetensors library and indices set out by hand."""

import json
import os
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from checkpoints import CheckpointError, open_checkpoint
from checkpoints.parameters import parameter_specs
from checkpoints.random import write_random
from tests.checkpoints.small_model import SMALL


def stored(folder):
    """Every tensor of a folder, read by the library that defines the format."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= safetensors.numpy.load_file(file)
    return tensors


def loaded(path, **options):
    return {name: np.asarray(array) for name, array in open_checkpoint(path).load(**options).items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_loading_gives_every_parameter_in_its_canonical_shape_and_dtype(huggingface):
    arrays = loaded(huggingface)
    assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in parameter_specs(SMALL).items()
    }


def test_gate_and_up_rows_are_taken_apart_and_blocks_flattened(huggingface):
    arrays, tensors = loaded(huggingface), stored(huggingface)
    for layer in range(SMALL.num_layers):
        here = f"layers.{layer}.moe.experts."
        there = f"model.layers.{layer}.mlp.experts."
        blocks = tensors[there + "gate_up_proj_blocks"]
        for expert in range(SMALL.num_experts):
            for row in range(SMALL.intermediate_size):
                for part, published in ((0, 2 * row), (1, 2 * row + 1)):
                    for kind in ("scales", "bias"):
                        np.testing.assert_array_equal(
                            arrays[here + f"gate_up.{kind}"][expert, part, row],
                            tensors[there + f"gate_up_proj_{kind}"][expert, published],
                        )
                    flat = [int(x) for group in blocks[expert, published] for x in group]
                    assert arrays[here + "gate_up.blocks"][expert, part, row].tolist() == flat
        down = tensors[there + "down_proj_blocks"]
        np.testing.assert_array_equal(
            arrays[here + "down.blocks"][4, 95], np.concatenate([down[4, 95, 0], down[4, 95, 1]])
        )
        np.testing.assert_array_equal(arrays[here + "down.scales"], tensors[there + "down_proj_scales"])


def test_query_key_and_value_are_the_rows_of_the_stacked_tensor(original):
    arrays, tensors = loaded(original), stored(original)
    for kind in ("weight", "bias"):
        stacked = tensors[f"block.1.attn.qkv.{kind}"]
        for name, start, stop in (("query", 0, 192), ("key", 192, 256), ("value", 256, 320)):
            np.testing.assert_array_equal(arrays[f"layers.1.attention.{name}.{kind}"], stacked[start:stop])


def test_plain_tensors_come_as_they_are(huggingface, original):
    arrays, first, second = loaded(huggingface), stored(huggingface), stored(original)
    for name, huggingface_name, original_name in (
        ("embedding.weight", "model.embed_tokens.weight", "embedding.weight"),
        ("unembedding.weight", "lm_head.weight", "unembedding.weight"),
        ("norm.scale", "model.norm.weight", "norm.scale"),
        ("layers.2.attention.norm.scale", "model.layers.2.input_layernorm.weight", "block.2.attn.norm.scale"),
        (
            "layers.2.moe.norm.scale",
            "model.layers.2.post_attention_layernorm.weight",
            "block.2.mlp.norm.scale",
        ),
        ("layers.2.attention.sinks", "model.layers.2.self_attn.sinks", "block.2.attn.sinks"),
        ("layers.2.attention.output.bias", "model.layers.2.self_attn.o_proj.bias", "block.2.attn.out.bias"),
        ("layers.2.moe.router.weight", "model.layers.2.mlp.router.weight", "block.2.mlp.gate.weight"),
    ):
        np.testing.assert_array_equal(arrays[name], first[huggingface_name])
        np.testing.assert_array_equal(arrays[name], second[original_name])


def test_both_layouts_of_one_seed_are_the_same_model_and_another_seed_is_another(
    huggingface, original, tmp_path
):
    arrays = loaded(huggingface)
    assert_same(arrays, loaded(original))
    write_random(tmp_path, SMALL, 4)
    other = loaded(tmp_path)
    assert all((arrays[name] != other[name]).any() for name in arrays)


def test_random_weights_break_symmetries_and_stay_moderate(huggingface):
    for name, array in loaded(huggingface).items():
        if name.endswith("scales"):
            assert set(array.ravel().tolist()) <= set(range(118, 124)) and len(np.unique(array)) > 1
        elif array.dtype == ml_dtypes.bfloat16:
            values = array.astype(np.float32)
            assert np.isfinite(values).all() and np.abs(values).max() <= 2 and values.std() > 0.01, name


def test_a_requested_dtype_is_given_to_all_but_the_packed_weights(huggingface):
    exact, arrays = loaded(huggingface), loaded(huggingface, dtype=np.float32)
    for name, array in arrays.items():
        assert array.dtype == (np.uint8 if exact[name].dtype == np.uint8 else np.float32)
        np.testing.assert_array_equal(array, exact[name].astype(array.dtype))


def test_the_original_folder_is_found_from_its_parent_and_yields_to_the_other_layout(
    original, huggingface, tmp_path
):
    assert open_checkpoint(original.parent).layout == open_checkpoint(original).layout == "original"
    both = tmp_path / "both"
    shutil.copytree(huggingface, both)
    shutil.copytree(original, both / "original")
    assert open_checkpoint(both).layout == "huggingface"
    assert open_checkpoint(both / "original").layout == "original"


def test_a_folder_may_bring_its_own_vocabulary(huggingface, tmp_path):
    assert open_checkpoint(huggingface).vocabulary is None
    shutil.copytree(huggingface, tmp_path / "own")
    (tmp_path / "own" / "vocabulary.tiktoken").write_text("IQ== 0\n")
    assert open_checkpoint(tmp_path / "own").vocabulary == tmp_path / "own" / "vocabulary.tiktoken"


def test_opening_reads_no_weights(huggingface, tmp_path):
    shutil.copytree(huggingface, tmp_path / "hollow")
    for file in (tmp_path / "hollow").glob("*.safetensors"):
        size, header = file.stat().st_size, 8 + int.from_bytes(file.read_bytes()[:8], "little")
        with file.open("r+b") as stream:  # a hole in the place of the weights
            stream.truncate(header)
            stream.truncate(size)
    checkpoint = open_checkpoint(tmp_path / "hollow")
    assert not any(np.asarray(array).any() for array in checkpoint.load().values())


def test_everything_wrong_is_said_in_one_message(huggingface, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    shutil.copy(huggingface / "config.json", folder)
    tensors = stored(huggingface)
    del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.sinks"]
    tensors["model.layers.0.self_attn.rotary.inv_freq"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = np.zeros((96, 301), ml_dtypes.bfloat16)
    tensors["model.layers.2.mlp.router.bias"] = np.zeros(5, np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    (folder / "junk.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    message = str(error.value)
    for part in (
        str(folder),
        "2 missing of 60 tensors: ",
        "model.norm.weight",
        "model.layers.1.self_attn.sinks",
        "1 unexpected of 60 tensors: model.layers.0.self_attn.rotary.inv_freq",
        "2 wrong of 60 tensors: ",
        "lm_head.weight is bfloat16 [96, 301]: it must be bfloat16 [301, 96]",
        "model.layers.2.mlp.router.bias is float32 [5]: it must be bfloat16 [5]",
        "cut.safetensors is cut short",
        "junk.safetensors is cut short or no safetensors file",
    ):
        assert part in message
    assert "\n" not in message


def test_an_index_must_match_its_files(huggingface, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    weight_map = index["weight_map"]
    gone = weight_map["lm_head.weight"]
    (folder / gone).unlink()
    weight_map["model.layers.0.self_attn.sinks"] = weight_map["model.layers.2.self_attn.sinks"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert f"{gone} is missing" in str(error.value)
    assert "model.layers.0.self_attn.sinks is not in model-" in str(error.value)


def test_a_dtype_that_no_parameter_has_is_reported_by_its_name(huggingface, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    for file in folder.glob("*.safetensors"):
        data = file.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        file.write_bytes(data[:end].replace(b'"dtype":"BF16"', b'"dtype":"U16" ') + data[end:])
    with pytest.raises(
        CheckpointError, match=r"embed_tokens\.weight is U16 \[301, 96\]: it must be bfloat16"
    ):
        open_checkpoint(folder)


def write_index(folder, change):
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name", ["../{}", "/tmp/{}", "", ".", "..", "a/{}", "a\\{}", "\0.safetensors", 7, None, "a.bin"]
)
def test_an_index_that_points_out_of_its_folder_is_refused(huggingface, tmp_path, name):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    if isinstance(name, str):
        name = name.format("model-00001-of-00007.safetensors")

    def change(index):
        index["weight_map"]["lm_head.weight"] = name

    write_index(folder, change)
    with pytest.raises(
        CheckpointError, match=r"places lm_head\.weight in .* a \*\.safetensors file beside the index"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize("value", [None, [], "x", 7])
def test_an_index_without_a_map_is_refused(huggingface, tmp_path, value):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    write_index(folder, lambda index: index.update(weight_map=value))
    with pytest.raises(CheckpointError, match=r"weight_map is .* it must map tensors to files"):
        open_checkpoint(folder)


def test_a_tensor_that_the_index_leaves_out_is_named(huggingface, tmp_path):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    write_index(folder, lambda index: index["weight_map"].pop("model.layers.0.self_attn.sinks"))
    message = r"model\.layers\.0\.self_attn\.sinks is in model-.*, but not in model\.safetensors\.index"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize("with_index", [True, False])
def test_a_tensor_in_two_files_is_named(huggingface, tmp_path, with_index):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    if not with_index:
        (folder / "model.safetensors.index.json").unlink()
    files = sorted(folder.glob("*.safetensors"))
    files[1].write_bytes(files[0].read_bytes())
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder)
    assert f"model.embed_tokens.weight is in both {files[0].name} and {files[1].name}" in str(error.value)


def test_weights_in_other_formats_are_named_and_not_read(huggingface, tmp_path):
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (folder / "more.pt").write_bytes(b"x")
    message = r"its weights \(more\.pt and 1 more\) are not read: opening a pickle runs any program in it"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)
    shutil.copy(huggingface / "config.json", folder)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors.index.json", "model-00001-of-00007.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_refused_and_not_waited_for(huggingface, tmp_path, name, kind):
    folder = tmp_path / "bad"
    shutil.copytree(huggingface, folder)
    (folder / name).unlink()
    make = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": lambda path: path.mkdir(),
        "loop": lambda path: path.symlink_to(path),
    }
    make[kind](folder / name)
    with pytest.raises(CheckpointError):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.mkdir(), "not a checkpoint"),
        (lambda folder: folder.write_text("x"), "no such folder"),
    ],
)
def test_what_is_no_checkpoint_folder_is_refused(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "x")


def test_an_existing_checkpoint_is_not_overwritten(huggingface):
    with pytest.raises(CheckpointError, match="already holds a checkpoint"):
        write_random(huggingface, SMALL)


def test_loaded_arrays_do_not_depend_on_the_files_any_more(huggingface, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(huggingface, folder)
    arrays = open_checkpoint(folder).load()
    jax.block_until_ready(arrays)
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"\0" * file.stat().st_size)
    assert_same({name: np.asarray(a) for name, a in arrays.items()}, loaded(huggingface))
