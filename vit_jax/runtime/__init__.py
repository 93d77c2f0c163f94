"""Tools that any long-running program needs: flags, signals, screen, files."""
