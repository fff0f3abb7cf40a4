"""Trains forget gates into pre-trained models: ./run foxify."""
