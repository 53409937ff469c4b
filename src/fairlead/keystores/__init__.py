"""Key stores: sources of keys and certificates, one implementation per kind behind one interface."""
