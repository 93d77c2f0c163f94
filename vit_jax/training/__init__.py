"""Pure functions of training: state, step, losses, optimizer, sharding."""
