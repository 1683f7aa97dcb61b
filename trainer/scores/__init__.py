"""What a model is worth: bits per byte of held-out text, answers to choices, and how sure either is."""
