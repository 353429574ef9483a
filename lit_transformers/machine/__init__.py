"""What the machine has, without torch: cores, memory, the processor."""
