"""Changes the package, one place at a time: what do its tests find?"""
