"""A site: read and encode its own rows, and answer the coordinator in counts, sums and models."""
