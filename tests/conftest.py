"""What holds for all tests."""

import os

from hypothesis import settings

settings.register_profile("patient", deadline=None)  # a machine that has other things to do is no defect
settings.register_profile("brief", deadline=None, max_examples=30)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "patient"))
