"""`python -m gptoss_jax.tiny OUT`: train the tiny model; `scripts/train_tiny` calls it with memory set up."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gptoss_jax.tiny import vocabulary
from gptoss_jax.tiny.export import write_checkpoint
from gptoss_jax.tiny.training import CONFIG, Recipe, train
from harmony import load_encoding


def main(arguments: list[str]) -> int:
    """Makes the vocabulary, trains or continues training, and writes `OUT/checkpoint`."""
    parser = argparse.ArgumentParser(
        prog="scripts/train_tiny",
        description="Train the embedded tiny model from scratch. The same command continues a stopped run.",
    )
    parser.add_argument("output", type=Path, nargs="?", default=Path("out/tiny"), help="default: out/tiny")
    options = parser.parse_args(arguments)

    checkpoint = options.output / "checkpoint"
    if (checkpoint / "config.json").exists():
        print(f"{checkpoint} is finished already")
        return 0
    recipe = Recipe()
    file = checkpoint / "vocabulary.tiktoken"
    if not file.exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        vocabulary.write(vocabulary.build(recipe.seed), file)
    encoding = load_encoding(file)
    state = train(encoding, vocabulary.read(file), recipe, options.output)
    (return_token,) = encoding.encode("<|return|>", allowed_special="all")
    write_checkpoint(checkpoint, CONFIG, state.parameters, return_token)
    print(f"{checkpoint} after {state.step} steps and {state.seconds / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
