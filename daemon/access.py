"""Who may ask the HTTP server: the token of scrapers, the cookie of browsers, and the names under which it may be asked.

A page on another site can make a browser of this machine send requests here, under that site's name, once its name is made to
mean 127.0.0.1 (DNS rebinding). So the name that was asked for has to be an address, which no site owns, or one of ours.
"""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

_COOKIE_S = 30 * 86400


class Access:
    """The rules of one server. Used from any thread.

    `token` None: everybody who reaches the server may read. `names`: host names besides addresses and `localhost`.
    """

    def __init__(self, token: str | None, names: Iterable[str] = ()) -> None:
        self._token = None if token is None else token.encode()
        self._names = frozenset({"localhost", *(name.lower().rstrip(".") for name in names)})

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return self._token is None

    def knows_host(self, host: str) -> bool:
        """Whether a `Host` header names this server: an address, or one of its names; any port."""
        name = host.strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._names
        return True

    def has_bearer(self, authorization: str) -> bool:
        """Whether an `Authorization` header, as latin-1 text, holds the token."""
        if self._token is None:
            return False
        return hmac.compare_digest(authorization.encode("latin-1", "replace"), b"Bearer " + self._token)

    def has_cookie(self, cookie: str) -> bool:
        """Whether a `Cookie` header holds what `login` gave."""
        if self._token is None:
            return False
        try:
            found = SimpleCookie(cookie).get(self._cookie_name)
        except CookieError:
            return False
        return found is not None and secrets.compare_digest(found.value.encode(), self._cookie_value.encode())

    def login(self, token: str) -> str | None:
        """Return the `Set-Cookie` header for a browser that knows the token; None for any other.

        The cookie is not the token and cannot be turned into it; it holds until the token changes.
        """
        if self._token is None or not hmac.compare_digest(token.encode(), self._token):
            return None
        return f"{self._cookie_name}={self._cookie_value}; Path=/; Max-Age={_COOKIE_S}; HttpOnly; SameSite=Strict"

    @property
    def _cookie_name(self) -> str:
        return f"gapless_{self._digest(b'name')[:8]}"  # of its own, since cookies do not tell ports apart

    @property
    def _cookie_value(self) -> str:
        return self._digest(b"value")

    def _digest(self, purpose: bytes) -> str:
        return hmac.new(self._token or b"", b"gapless cookie " + purpose, hashlib.sha256).hexdigest()
