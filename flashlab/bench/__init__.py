"""Measurements, each a command. Their results are stored in ``notebooks/data/``, with device, date and command.

    python -m flashlab.bench                 speed of attention, ours beside torch's (``round_robin``)
    python -m flashlab.bench.models          attention of models that people use, beside every rival
    python -m flashlab.bench.hopper          speed of the Hopper kernels, and of the rungs that lead to them
    python -m flashlab.bench.decoding        a step of decoding, ours beside torch's, and our sweep
    python -m flashlab.bench.float8          attention in 8 bits beside bfloat16, and a sweep of its tiles
    python -m flashlab.bench.recomputation   time and DRAM traffic of a forward and a backward pass
    python -m flashlab.bench.traffic         traffic of a forward pass: predicted, counted, measured
    python -m flashlab.bench.ring            attention over several GPUs, beside torch's
    python -m flashlab.bench.shared_memory   shared memory that tiles of several sizes take
    python -m flashlab.bench.capture         queries, keys and values of a trained model; needs no GPU

Each explains itself with ``--help``. This wing is above the others: it may import all of them, and none imports it.
"""
