"""The resources of the machine, without torch: cores, memory, the processor."""
