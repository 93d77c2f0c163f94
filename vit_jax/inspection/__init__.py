"""Maps, charts and figures of what a model has learned and a data set holds."""
