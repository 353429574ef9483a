"""Side-by-side timings. Each prints a table, and writes its numbers with --json."""
