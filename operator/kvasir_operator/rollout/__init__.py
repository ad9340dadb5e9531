"""How many replicas each revision has next, and which pod leaves: from observed counts alone, so a restart costs
nothing."""
