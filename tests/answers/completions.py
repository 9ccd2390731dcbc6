"""Completions as the model writes them, as text."""

THOUGHT = "<|channel|>analysis<|message|>Two and three.<|end|><|start|>assistant"
ANSWER = THOUGHT + "<|channel|>final<|message|>It is 5.<|return|>"
CALL = (
    THOUGHT + "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.add"
    '<|channel|>commentary <|constrain|>json<|message|>{"a":2}<|call|>'
)
