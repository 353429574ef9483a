"""Where runs are done: on this machine, or on a SLURM cluster."""
