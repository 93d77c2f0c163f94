"""Experiments with runs: probes, suites, studies, rates, replays, averages."""
