"""The paper's theorems as code: bounds, certificates, growth, adversary, transfer, similarity."""
