"""libnftables, used for everything except elements, in text form."""

import ctypes
from functools import lru_cache

_LIBRARY = "libnftables.so.1"


class NftError(Exception):
    """Error of nft, with its message."""


@lru_cache
def _library() -> ctypes.CDLL:
    """Load the library. Raises OSError if it is not installed."""
    found = ctypes.CDLL(_LIBRARY)
    found.nft_ctx_new.restype = ctypes.c_void_p
    found.nft_ctx_new.argtypes = [ctypes.c_uint32]
    found.nft_ctx_free.argtypes = [ctypes.c_void_p]
    found.nft_ctx_buffer_error.argtypes = [ctypes.c_void_p]
    found.nft_ctx_get_error_buffer.argtypes = [ctypes.c_void_p]
    found.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    found.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    found.nft_run_cmd_from_buffer.restype = ctypes.c_int
    return found


def load(text: str) -> None:
    """Run commands in one transaction. Raises NftError, and OSError without libnftables."""
    library = _library()
    context = library.nft_ctx_new(0)
    try:
        library.nft_ctx_buffer_error(context)
        if library.nft_run_cmd_from_buffer(context, text.encode()):
            said = library.nft_ctx_get_error_buffer(context)
            raise NftError(said.decode(errors="replace").strip().partition("\n")[0])
    finally:
        library.nft_ctx_free(context)
