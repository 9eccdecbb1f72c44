"""The toy plan: the engine's own round over tabulated laws, so that the whole check takes seconds and nothing is approximate."""
