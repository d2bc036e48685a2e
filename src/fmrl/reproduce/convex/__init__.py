"""The convex study: every convex figure of the paper from records, with intervals and a verdict on
each claim.

Experiments are data (`table`), one runner plays them (`parts`), figures are drawn from the rows it
leaves (`figures`), and each claim of the paper is a function from rows to pass or fail (`claims`).
"""
