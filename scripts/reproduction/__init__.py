"""What writes docs/reproduction.md from the records in results/."""
