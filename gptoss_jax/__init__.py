"""Run OpenAI's gpt-oss models on JAX, with experts that stay in MXFP4."""
