"""`gptoss-jax verify`: checks that an installation computes gpt-oss on its devices; one page says it."""
