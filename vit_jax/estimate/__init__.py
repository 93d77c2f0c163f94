"""What a train step would cost on a TPU that is not there."""
