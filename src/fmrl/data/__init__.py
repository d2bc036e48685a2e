"""Data sets, tables and synthetic tasks."""
