"""API front ends. Each decodes its requests into the common model, encodes responses, and formats errors in its own
style."""
