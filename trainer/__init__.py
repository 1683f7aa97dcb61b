"""Who eats a corpus: packing, loader, model, optimiser, loop, checkpoints, evaluate_bpb.

This package imports `manifests` only; it runs on a machine that has no ray.
"""
