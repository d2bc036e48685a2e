"""Minimising summed losses over a domain, with a duality gap that proves the answer."""
