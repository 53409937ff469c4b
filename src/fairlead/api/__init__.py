"""The doors. Each decodes its own requests into the one model, encodes answers, and says errors in its own words."""
