"""The best classifier for a stated goal: what a goal is, how candidates are compared, and which one is taken."""
