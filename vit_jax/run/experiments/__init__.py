"""What is done with runs: probes, suites, studies, rates, replays, averages."""
