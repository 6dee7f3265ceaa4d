"""All that touches a stream."""
