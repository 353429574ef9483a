"""Where runs are done: on this machine, or on a SLURM or Ray cluster."""
