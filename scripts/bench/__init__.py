"""Measures speed, memory and cost, on a machine or by its compiler."""
