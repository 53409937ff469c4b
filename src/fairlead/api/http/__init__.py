"""HTTP below every API front end: connections, access control, routes, documents, lists and errors."""
