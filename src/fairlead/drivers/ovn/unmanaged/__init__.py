"""Networks in OVN that another system manages, imported as documents."""
