"""The study of learned steps: ARUBA and its relatives on Omniglot and Tiny ImageNet-100."""
