"""How batches are made, in which order, and handed over by workers."""
