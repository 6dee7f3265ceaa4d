"""Who may ask: tokens, cookies, and names that do not belong to other sites."""

from http.cookies import SimpleCookie

import pytest

from daemon.access import Access

TOKEN = "s3cr\u00e9t token"  # noqa: S105  of this test


def cookie_of(header: str) -> str:
    """What a browser sends back."""
    return "; ".join(f"{morsel.key}={morsel.value}" for morsel in SimpleCookie(header).values())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:9400", "[::1]:9400", "[::1]", "192.168.1.7:80", "localhost", "LocalHost:9400", "localhost.",
        "gpu-box.lan:9400", "GPU-box.lan.",
    ],
)  # fmt: skip
def test_addresses_and_own_names_are_known(host: str) -> None:
    """With any port, in any case."""
    assert Access(None, ["gpu-box.lan"]).knows_host(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9400", "127.0.0.1.evil.example", "localhost.evil.example", "[evil]", "1270.0.0.1", "::1"],
)  # fmt: skip
def test_any_other_name_may_belong_to_another_site(host: str) -> None:
    """Also one that looks like an address."""
    assert not Access(None, ["gpu-box.lan"]).knows_host(host)


def test_the_bearer_is_the_whole_token() -> None:
    """As the bytes that came, whatever their encoding."""
    access = Access(TOKEN)
    sent = f"Bearer {TOKEN}".encode().decode("latin-1")
    assert access.has_bearer(sent)
    for wrong in ("", "Bearer ", "Bearer x", sent[:-1], sent + " ", f"Basic {TOKEN}", TOKEN):
        assert not access.has_bearer(wrong)


def test_a_login_gives_a_cookie_that_opens_and_does_not_tell_the_token() -> None:
    """Scripts cannot read it, and other sites cannot have it sent."""
    access = Access(TOKEN)
    header = access.login(TOKEN)
    assert header is not None
    assert "HttpOnly" in header
    assert "SameSite=Strict" in header
    assert "s3cr" not in header
    assert access.has_cookie(cookie_of(header))
    assert access.has_cookie(f"other=1; {cookie_of(header)}")
    assert access.login("guess") is None
    assert access.login("") is None


def test_a_cookie_of_another_token_opens_nothing() -> None:
    """So that a changed token locks out who knew the old one."""
    old = Access("old").login("old")
    assert old is not None
    access = Access("new")
    assert not access.has_cookie(cookie_of(old))
    name = cookie_of(access.login("new") or "").partition("=")[0]
    for wrong in ("", name, f"{name}=", f"{name}=x", f"{name}=\u00e9", "]=;;"):
        assert not access.has_cookie(wrong)


def test_without_a_token_nothing_opens_anything() -> None:
    """An empty secret is no secret."""
    access = Access(None)
    assert access.is_open
    assert not access.has_bearer("Bearer ")
    assert not access.has_cookie("gapless_=")
    assert access.login("") is None
