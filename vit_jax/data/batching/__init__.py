"""How batches are made, in which order, and how workers hand them over."""
