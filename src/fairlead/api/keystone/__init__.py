"""Authentication by Keystone tokens (Identity API v3).

answers.py     parser of Keystone's responses
remembered.py  cache of validation results by token digest
asking.py      Keystone client with the service user's token
tokens.py      validation of a caller's token, cached or by Keystone, with rate limits
"""
