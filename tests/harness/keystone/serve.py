"""The real Keystone as an ASGI application, for uvicorn. OS_KEYSTONE_CONFIG_FILES names its configuration."""

import sys

sys.argv = ["keystone"]  # the imported module reads it at import

from a2wsgi import WSGIMiddleware  # noqa: E402
from keystone.wsgi.api import application  # noqa: E402

app = WSGIMiddleware(application, workers=4)
