"""The checks of a run before it trains: gates, fields without effect, and the miniature that they run on."""
