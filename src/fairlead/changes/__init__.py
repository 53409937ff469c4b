"""Rules of changes to the model, the same for every API front end. Pure.

A front end decodes a request into values of the model, calls a rule here for the change, and formats the refusals.
Front ends contain no rules.
"""
