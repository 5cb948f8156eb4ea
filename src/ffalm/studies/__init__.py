"""Studies: grids of runs spread over processes, their folders on disk, and what is read back from them."""
