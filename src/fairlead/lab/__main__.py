"""`python -m fairlead.lab ...` is `fairlead lab ...`."""

import sys

from fairlead.lab.command import main

if __name__ == "__main__":
    sys.exit(main())
