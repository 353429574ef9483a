"""Generated questions with answers, symbol by symbol."""
