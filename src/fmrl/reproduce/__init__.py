"""The paper's experiments: what is run (``convex``, ``deep``), what is claimed and whether it holds
(``verdict``), and the pictures (``figures``).
"""
