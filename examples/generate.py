"""Answers three questions with the embedded model, or with the checkpoint folder given as an argument."""

import sys

from gptoss_jax import LLM, SamplingParams

questions = ["What is 214 + 387?", "Calculate 905 minus 467.", "340+125=?"]

with LLM(sys.argv[1] if len(sys.argv) > 1 else "tiny") as llm:
    outputs = llm.generate(questions, SamplingParams(temperature=0), effort="low")
    for question, output in zip(questions, outputs, strict=True):
        print(question, "→", output.text)
