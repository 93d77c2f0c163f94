"""Pictures in, predictions and features out."""
