"""Text for people: amounts, errors in a line, and names that a table may break."""
