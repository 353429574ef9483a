"""Weights & Biases: sweeps, their agents, and dashboards."""
