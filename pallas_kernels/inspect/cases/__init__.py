"""The kernels at the shapes of gpt-oss: one module per operation, with `cases(chip) -> list[Case]`."""
