"""Compiled loops over text; the first lines of `stages.kernels.reading` say how they are written and tested."""
