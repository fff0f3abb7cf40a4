"""Converts checkpoints and GGUF files into directories that the server loads: ./run convert."""
