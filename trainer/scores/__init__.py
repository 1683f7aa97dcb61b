"""What a model is worth: bits per byte, and choices."""
