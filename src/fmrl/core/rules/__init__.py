"""The rules of Algorithm 2 as values: within-task learners, update rules, meta-updates and
similarity rules. A class of rules is known to `parse`, and so to the command line and to what was
saved, as soon as its module is imported.
"""
