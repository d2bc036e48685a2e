"""How a stack of tasks is run: by hand, by autograd, by kernels, in threads."""
