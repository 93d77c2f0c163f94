"""Experiments that use runs: probes, suites of test sets, studies, rates."""
