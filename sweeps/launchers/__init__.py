"""Where runs execute: this machine, a SLURM cluster or a Ray cluster."""
