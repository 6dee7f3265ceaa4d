"""Models and where their weights come from."""
