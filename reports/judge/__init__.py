"""Judging: intervals, verdicts, fairness, significance, and agreement with the source."""
