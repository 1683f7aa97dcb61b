"""Whether a corpus is what its manifest says, in every file and column."""
