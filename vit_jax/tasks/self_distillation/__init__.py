"""Self-distillation, trained without labels."""
