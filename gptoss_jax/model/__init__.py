"""The gpt-oss architecture in Flax NNX: `gpt_oss` is the published model, the other modules serve it fast."""

from gptoss_jax.model.gpt_oss import GptOss
from gptoss_jax.model.loading import load, load_plain, plain_with_parameters, with_parameters
from gptoss_jax.model.transformer import Transformer

__all__ = ["GptOss", "Transformer", "load", "load_plain", "plain_with_parameters", "with_parameters"]
