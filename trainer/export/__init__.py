"""A model outside a run: written for and read from Hugging Face's format, and the text that it makes."""
