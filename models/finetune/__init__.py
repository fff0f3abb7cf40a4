"""Trains Forgetting Transformers in PyTorch: ./run finetune."""
