"""The checks that an implementation must pass to count as right: a few tiny cases, each of which shows a mistake that
the others hide. Tiles are 16 x 16 for kernels, which have no smaller ones, and 4 x 4 for all else."""
