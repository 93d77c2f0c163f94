"""The train step and all that is differentiated or sharded: pure functions."""
