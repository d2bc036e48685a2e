"""Hypothesis: the same examples every time; HYPOTHESIS_PROFILE=explore draws new ones, and more of them."""

import os

from hypothesis import settings

settings.register_profile("fixed", deadline=None, max_examples=20, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
