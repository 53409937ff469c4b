"""The LXD door: networks, load balancers and forwards at /1.0, as LXD's and Incus's clients expect them."""
