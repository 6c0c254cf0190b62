"""TLS: what both our sides have in common, and contexts towards engines.

Those are shared: one holds all of the system's authorities, most of a megabyte.
"""

import ssl
from asyncio.sslproto import SSLProtocol
from weakref import WeakValueDictionary

from exporter.files import file_version
from exporter.schema import Scrape

STRENGTH = "DEFAULT:@SECLEVEL=2"
"""OpenSSL's level of 112 bits: RSA keys of at least 2048, no SHA-1."""

# Every connection holds a buffer of this size, of 256 KiB unless told: with many engines, or many readers, too much. A
# record of TLS has at most 16 KiB.
SSLProtocol.max_size = 2**15

_contexts: WeakValueDictionary[object, ssl.SSLContext] = WeakValueDictionary()


def client_context(scrape: Scrape) -> ssl.SSLContext:
    """The context for an engine, the same one for all whose files are the same.

    Raises:
        OSError: a file cannot be read; as ``ssl.SSLError`` its content cannot be used, or the key is weak.
    """
    files = tuple(file_version(path) for path in (scrape.ca_file, scrape.cert_file, scrape.key_file))
    key = (files, scrape.insecure_skip_verify)
    context = _contexts.get(key)
    if context is None:
        context = ssl.create_default_context(cafile=scrape.ca_file)
        if scrape.cert_file is not None:
            context.set_ciphers(STRENGTH)
            # A password that is none: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(scrape.cert_file, scrape.key_file, password="")
        if scrape.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _contexts[key] = context
    return context


def problem(error: OSError) -> str:
    """What is wrong with a certificate or a key, in words."""
    if isinstance(error, ssl.SSLError):
        known = {
            "EE_KEY_TOO_SMALL": "the key is too weak: RSA needs 2048 bits or more",
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "PEM_LIB": "not PEM, or a key with a password",
            "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in it",
        }
        reason = error.reason or ("PEM_LIB" if "PEM lib" in str(error) else str(error))
        return known.get(reason.replace(" ", "_"), reason)
    return error.strerror or str(error)
