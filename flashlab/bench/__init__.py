"""Measurements, each a command. Most results are stored in ``notebooks/data/``, with device, date and command.

    python -m flashlab.bench                 speed of attention, ours beside torch's (``round_robin``)
    python -m flashlab.bench.models          attention of models that people use, beside every rival
    python -m flashlab.bench.hopper          speed of the Hopper kernels, and of the rungs that lead to them
    python -m flashlab.bench.decoding        a step of decoding, ours beside torch's, and our sweep
    python -m flashlab.bench.float8          attention in 8 bits beside bfloat16, and a sweep of its tiles
    python -m flashlab.bench.recomputation   time and DRAM traffic of a forward and a backward pass
    python -m flashlab.bench.traffic         traffic of a forward pass: predicted, counted, measured
    python -m flashlab.bench.ring            attention over several GPUs, beside torch's
    python -m flashlab.bench.shared_memory   shared memory that tiles of several sizes take
    python -m flashlab.bench.masks           masks, score functions, sinks and dropout, beside FlexAttention
    python -m flashlab.bench.choice          the portable and the Hopper kernels on short sequences and few heads
    python -m flashlab.bench.sweep           the portable forward kernel with many tiles, and clocks for one call
    python -m flashlab.bench.calls           the time of a call in Python
    python -m flashlab.bench.compiled        what the machine code of a kernel takes; needs no GPU
    python -m flashlab.bench.capture         queries, keys and values of a trained model; needs no GPU
    python -m flashlab.bench.llama           what a Llama writes with its own attention and with ours; needs no GPU

Each explains itself with ``--help``. This package is above the others: it may import all of them, and none imports it.
"""
