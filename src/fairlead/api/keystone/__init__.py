"""Who calls, by a token of Keystone's (Identity API v3).

answers.py     what a validated token says
remembered.py  what Keystone said lately, by digests: never a token
asking.py      what is asked of Keystone, with a token of our own
tokens.py      a caller's token: remembered, or asked for, in turns
"""
