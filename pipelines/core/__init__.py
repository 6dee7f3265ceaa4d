"""Plain Python state machines of the engine; no torch."""
