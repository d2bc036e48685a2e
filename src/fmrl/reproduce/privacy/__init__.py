"""What task-level privacy costs: TAR against epsilon, for several numbers of tasks and sizes."""
