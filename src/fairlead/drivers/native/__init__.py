"""Driver for plain Linux hosts: rows as nftables elements, routes, rules and addresses in the kernel."""
