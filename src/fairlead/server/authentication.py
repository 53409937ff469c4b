"""Authentication of callers as configured, read at the start and again at SIGHUP."""

import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from fairlead.api.http.access_control import BASIC
from fairlead.api.http.authentication import Authenticate, HttpBasic, authenticate_as_admin, read_password_file
from fairlead.api.keystone.cache import TokenCache
from fairlead.api.keystone.client import Keystone, ServiceUser, ServiceUserRejected
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.config.errors import BadConfiguration
from fairlead.config.option_fields import PathKind
from fairlead.config.option_files import OptionFile, read_password
from fairlead.config.options import Configuration, KeystoneOptions
from fairlead.http.client import HttpEndpoint, NoAnswer, NotTrusted

LOG = logging.getLogger(__name__)
Replace: TypeAlias = Callable[[], Awaitable[None]]
"""Puts the re-read credentials into effect."""


def make_authentication(configuration: Configuration) -> Authenticate:
    """Create the configured authenticator. Raises BadPasswordFile, BadConfiguration and OSError."""
    options = configuration.server
    if options.authentication == "none":
        return authenticate_as_admin
    passwords = HttpBasic(read_password_file(Path(options.password_file))) if options.password_file else None
    if options.authentication == "keystone":
        keystone = configuration.keystone
        memory = TokenCache(keystone.token_cache_ttl, keystone.stale_token_grace)
        return KeystoneTokens(Keystone(*read_keystone(keystone)), memory, passwords)
    assert passwords is not None  # noqa: S101 - the configuration is checked
    return passwords


async def check_authentication(authenticate: Authenticate, configuration: Configuration) -> None:
    """Check Fairlead's credentials at Keystone; if Keystone is down, log it. Raises BadConfiguration."""
    if not isinstance(authenticate, KeystoneTokens):
        return
    where = configuration.keystone.root
    try:
        await authenticate.keystone.check()
    except (ServiceUserRejected, NotTrusted) as error:
        raise BadConfiguration(f"keystone: {where}: {error}") from None
    except NoAnswer as error:
        LOG.error("Keystone at %s: %s; requests with tokens get 503 until Keystone responds", where, error)


def challenge(configuration: Configuration) -> str:
    """Return the WWW-Authenticate header for 401 answers, as Keystone's middleware (keystonemiddleware) does."""
    if configuration.server.authentication != "keystone":
        return BASIC
    options = configuration.keystone
    return f'Keystone uri="{options.public_url.rstrip("/") or options.root}"'


def reload_credentials(authenticate: Authenticate, configuration: Configuration) -> Replace:
    """Re-read passwords and Keystone's CA certificates.

    Raises BadPasswordFile, BadConfiguration and OSError, and then nothing changes.
    """
    match authenticate:
        case HttpBasic():
            users = read_password_file(Path(configuration.server.password_file))

            async def replace_users() -> None:
                await authenticate.replace(users)
                LOG.info("SIGHUP: loaded %d users and cleared the cached logins", len(users))

            return replace_users
        case KeystoneTokens():
            place, user = read_keystone(configuration.keystone)
            others = reload_credentials(authenticate.others, configuration) if authenticate.others else _nothing

            async def replace_keystone() -> None:
                authenticate.keystone.replace(place, user)
                authenticate.cache.clear()
                LOG.info("SIGHUP: cleared the cached tokens")
                await others()

            return replace_keystone
    return _nothing


async def _nothing() -> None:
    """Do nothing: this authentication reads no files."""


def read_keystone(options: KeystoneOptions) -> tuple[HttpEndpoint, ServiceUser]:
    """Read Keystone's location and the service user's credentials. Raises BadConfiguration and OSError."""
    tls = None
    if options.url.startswith("https://"):
        try:
            tls = ssl.create_default_context(cafile=options.ca or None)
        except ssl.SSLError:
            raise BadConfiguration(f"keystone.ca: {options.ca}: the file contains no certificate") from None
    password = read_password(
        OptionFile(option="keystone.password_file", path=options.password_file, kind=PathKind.PASSWORD)
    )
    user = ServiceUser(
        name=options.user,
        password=password,
        project=options.project,
        user_domain=options.user_domain,
        project_domain=options.project_domain,
    )
    return HttpEndpoint(url=options.root, tls=tls), user
