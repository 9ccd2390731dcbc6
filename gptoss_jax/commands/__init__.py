"""The commands of `gptoss-jax`. Each module offers `add_parser`; what is slow to import waits for `run`."""
