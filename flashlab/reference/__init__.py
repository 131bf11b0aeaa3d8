"""One idea per module, in numpy: the mathematics of each lesson, with a bill for the memory that it moves.

``attention`` is the oracle: the definition, written out. Every other module computes the same or says what it changes.
Arrays are numpy's, of one floating dtype; ``masks``, ``scores`` and ``rules`` describe which attention is computed.
"""
