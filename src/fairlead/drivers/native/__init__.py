"""Rows of plain Linux hosts in the kernel: nftables, routes, rules, addresses."""
