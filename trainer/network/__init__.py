"""The model, its kernels, and how much arithmetic they take."""
