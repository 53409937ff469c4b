"""Clients of each API front end in this process, and the catalogues that their tests share."""
