"""Where keys and certificates come from: an implementation for each kind of place, behind one interface."""
