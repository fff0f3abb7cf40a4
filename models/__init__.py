"""The Python programs of models/: convert, finetune and foxify, each a package.

They run as modules with the repository's root in PYTHONPATH: `python -m models.convert.fox_convert`.
"""
