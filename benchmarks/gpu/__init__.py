"""Everything that is worth measuring on a borrowed GPU, in calls of some minutes. See ``docs/gpu.md``."""
