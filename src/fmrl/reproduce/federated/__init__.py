"""Federated learning of the next character: what a learned step and personalising are worth."""
