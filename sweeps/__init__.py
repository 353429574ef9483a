"""How many runs become one answer: a ledger that hands them out, a process for each, and a live table."""
