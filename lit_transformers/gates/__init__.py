"""What a run is checked for before it trains: gates, fields without effect, and the miniature that they run on."""
