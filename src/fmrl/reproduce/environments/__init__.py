"""Rules for environments that stand still, move, or have several centres."""
