"""The options of engines on the embedded model: tests that share them share its compiled programs."""

DTYPE = "float32"
OPTIONS = {"slots": 16, "max_length": 512}
