"""Speculation: tokens that are guessed ahead, verified in one step, and no more of them than pay."""
