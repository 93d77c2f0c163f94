"""One pass over a split, every example once; confusion; linear probes."""
