"""What is checked of a model: gates, fields without effect, observations; and the small copy that is checked."""
