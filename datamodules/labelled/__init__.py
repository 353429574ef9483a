"""Sequences with one label each: data sets, generators and their data module."""
