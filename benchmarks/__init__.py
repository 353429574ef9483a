"""Side-by-side timings. Each script prints a table, and writes its numbers to a file with --json."""
