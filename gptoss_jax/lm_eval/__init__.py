"""gpt-oss as a model of lm-evaluation-harness (`lm_eval`, extra `lm-eval`): docs/evals.md.

`model.GptOssLM` is the class. Only `model` and `__main__` import `lm_eval`.
"""
