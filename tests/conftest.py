"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a machine that has other things to do is no defect
settings.load_profile("patient")
