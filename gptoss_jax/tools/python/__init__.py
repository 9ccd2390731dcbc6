"""The built-in tool `python`: code of the model in a Jupyter kernel, held to limits."""
