"""Bodies of requests to each endpoint, and what is wrong with one that is refused."""

from typing import Any

import pytest

from daemon.request_body import Body, read_body
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url

USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> Body:
    return read_body(Url.CHAT, {"messages": [USER]} | fields)


def completion(**fields: Any) -> Body:
    return read_body(Url.COMPLETIONS, {"prompt": "Hi"} | fields)


def response(**fields: Any) -> Body:
    return read_body(Url.RESPONSES, {"input": "Hi"} | fields)


def fault(url: Url, **fields: Any) -> InvalidRequestError:
    prompt = {Url.CHAT: {"messages": [USER]}, Url.COMPLETIONS: {"prompt": "Hi"}, Url.RESPONSES: {"input": "Hi"}}[url]
    with pytest.raises(InvalidRequestError) as caught:
        read_body(url, prompt | fields)
    return caught.value


def message_fault(**message: Any) -> InvalidRequestError:
    return fault(Url.CHAT, messages=[USER, message])
