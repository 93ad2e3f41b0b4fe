"""Whether the parameters of all ranks are equal: a part of them is hashed before each step, and compared.

``slices`` cuts the parameters, ``compare`` says how they differ, ``shelf`` keeps values of a slice
that differs until others have fetched them, and ``parameters`` is a session's part in it.
"""
