"""From a corpus to rows of tokens."""
