"""The deep study: the authors' 48 Reptile runs, ours beside theirs."""
