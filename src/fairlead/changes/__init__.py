"""What a request does to the model: the rules that hold whichever door it came through. Pure.

A door decodes what its clients say into values of the model, asks for a change here, and says in its own words what is
refused. No rule lives in a door.
"""
