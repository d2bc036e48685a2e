"""The paper's theorems as code: bounds, certificates, growth, the adversary, transfer, similarity."""
