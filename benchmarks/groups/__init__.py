"""The parts of benchmarks/grouped.py."""
