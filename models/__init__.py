"""The Python programs of models/: convert, finetune and foxify, each a package.

They run as modules, with the root of the repository in PYTHONPATH:
`python -m models.convert.fox_convert`.
"""
