"""The estimators against what is used on grouped data, on real sets; `python -m benchmarks.grouped
--help`.
"""
