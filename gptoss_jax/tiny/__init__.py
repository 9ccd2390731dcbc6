"""The tiny model: its synthetic dialogues, its vocabulary and its training (`scripts/train_tiny`)."""
