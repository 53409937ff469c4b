"""The real Barbican as an ASGI application, for uvicorn. HOME is the folder with its configuration."""

import sys
from pathlib import Path

from a2wsgi import WSGIMiddleware
from paste import deploy

app = WSGIMiddleware(deploy.loadapp(f"config:{Path(sys.prefix) / 'etc/barbican/barbican-api-paste.ini'}"), workers=4)
