"""What trains in order to learn something about training: reference models, stability, a run again, its batches."""
