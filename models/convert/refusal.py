"""Refusal: why a checkpoint cannot be converted, in one line that names the tensor, key or file.

Every module of the converter raises it for bad input; fox_convert.py turns it into exit code 1.
"""


class Refusal(Exception):
    """The input is not convertible; str() is the one-line reason."""
