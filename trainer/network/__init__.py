"""The model, its kernels, and what they compute."""
