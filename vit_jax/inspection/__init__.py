"""What a model has learned and what a data set holds: maps, charts, figures."""
