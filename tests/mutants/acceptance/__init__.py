"""What an implementation must pass to count as right: a handful of tiny cases, each there because a mistake hides from
the others. They take the tile sizes 16 x 16 (kernels: no smaller ones exist) or 4 x 4."""
