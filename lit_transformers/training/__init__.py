"""How a network is trained: optimizers and schedules, callbacks, checkpoints, ranks, stopping."""
