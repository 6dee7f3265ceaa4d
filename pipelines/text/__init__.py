"""Chat templates, tokenising, detokenising."""
