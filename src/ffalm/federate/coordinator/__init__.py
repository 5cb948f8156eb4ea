"""The coordinator: agree with the sites, lead the rounds, validate updates, record the run."""
