"""The convex study: TAR, accuracy, similarity and growth of the paper's linear models."""
