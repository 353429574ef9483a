"""Doing the runs of a study: a ledger that hands them out, a process for each, and a live table."""
