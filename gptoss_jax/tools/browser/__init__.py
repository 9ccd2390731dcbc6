"""The built-in tool `browser`: searches, opens and searches in documents of a back end."""
