"""The rules of Algorithm 2 as values: within-task learners, update rules, meta-updates and
similarity rules.
"""
