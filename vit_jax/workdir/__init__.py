"""The folder of a run: everything that reads or writes it."""
