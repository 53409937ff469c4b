"""Key stores of a server, as configured."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fairlead.api.http.authentication import Authenticate
from fairlead.api.keys import Keys
from fairlead.api.keystone.client import Keystone, OwnToken, ServiceUserRejected
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.config.errors import BadConfiguration
from fairlead.config.options import Configuration, KeyOptions
from fairlead.http.client import HttpEndpoint, NoAnswer
from fairlead.keystores.barbican import UNRESPONSIVE_MESSAGE, Barbican, CombinedKeyStore, Token
from fairlead.keystores.directory import Directory
from fairlead.keystores.interface import KeyStore, KeyStoreUnresponsive
from fairlead.runtime.fair_semaphore import FairSemaphore, WaitQueueFull
from fairlead.runtime.logging import RateLimit
from fairlead.server.authentication import read_keystone

LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))
MAX_REQUESTS, MAX_REQUESTS_PER_PROJECT, MAX_WAITING_PER_PROJECT, MAX_WAITING = 8, 4, 100, 1000
"""Limits for Barbican: concurrent reads of all projects and of one; waiting reads of one project and of all."""


def make_keys(configuration: Configuration, authenticate: Authenticate) -> Keys:
    """Create the configured key stores. Raises BadConfiguration and OSError."""
    options = configuration.keys
    stores = list[KeyStore]()
    if options.directory:
        stores.append(Directory(Path(options.directory)))
    if options.barbican:
        stores.append(_barbican(configuration, authenticate))
    match stores:
        case []:
            return Keys()
        case [directory, barbican]:
            return Keys(CombinedKeyStore(directory, barbican))
        case [store, *_]:
            return Keys(store)
    raise AssertionError


def _barbican(configuration: Configuration, authenticate: Authenticate) -> Barbican:
    """Create the Barbican client, which uses the same service user as the Keystone client."""
    if isinstance(authenticate, KeystoneTokens):
        keystone = authenticate.keystone
    else:
        keystone = Keystone(*read_keystone(configuration.keystone))

    async def own(instead_of: Token | None) -> Token:
        try:
            return await keystone.own_token(instead_of if isinstance(instead_of, OwnToken) else None)
        except (ServiceUserRejected, NoAnswer) as error:
            LOG.error("Keystone at %s: %s; keys cannot be read from Barbican", configuration.keystone.root, error)
            raise KeyStoreUnresponsive(UNRESPONSIVE_MESSAGE) from None

    turns = FairSemaphore(
        at_once=MAX_REQUESTS, of_one=MAX_REQUESTS_PER_PROJECT, waiting=MAX_WAITING_PER_PROJECT, in_all=MAX_WAITING
    )

    @asynccontextmanager
    async def turn(project_id: str) -> AsyncIterator[None]:
        try:
            async with turns.turn(project_id):
                yield
        except WaitQueueFull:
            raise KeyStoreUnresponsive("too many reads of the key store are waiting") from None

    return Barbican(_place(configuration.keys), own, turn)


def _place(options: KeyOptions) -> HttpEndpoint:
    """Return Barbican's location. Raises BadConfiguration and OSError."""
    if not options.barbican.startswith("https://"):
        return HttpEndpoint(url=options.root)
    try:
        return HttpEndpoint(url=options.root, tls=ssl.create_default_context(cafile=options.barbican_ca or None))
    except ssl.SSLError:
        raise BadConfiguration(f"keys.barbican_ca: {options.barbican_ca}: the file contains no certificate") from None
