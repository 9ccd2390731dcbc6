"""The gpt-oss architecture in Flax NNX."""

from gptoss_jax.model.loading import load, with_parameters
from gptoss_jax.model.transformer import Transformer

__all__ = ["Transformer", "load", "with_parameters"]
