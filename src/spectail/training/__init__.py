"""The engine: configuration, the one loop, checkpoints, evaluation, probe mode."""
