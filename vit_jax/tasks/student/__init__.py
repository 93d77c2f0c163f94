"""Students of a frozen encoder, trained without labels."""
