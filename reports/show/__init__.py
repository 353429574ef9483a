"""Showing: tables, figures, pages and sentences."""
