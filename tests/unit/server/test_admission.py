from contextlib import ExitStack

import pytest

from nunatak_server.admission import Admission
from nunatak_server.errors import OverloadedError


def test_a_request_without_a_place_is_refused_at_once() -> None:
    admission = Admission(max_requests=2, max_tokens=100)

    with ExitStack() as stack:
        stack.enter_context(admission.admit())
        stack.enter_context(admission.admit())
        with pytest.raises(OverloadedError, match="2 requests") as refused, admission.admit():
            pass

    assert refused.value.retry_after_s >= 1
    assert admission.num_requests == 0


def test_tokens_beside_those_of_others_are_bounded() -> None:
    admission = Admission(max_requests=9, max_tokens=100)

    with admission.admit() as first, admission.admit() as second:
        first.take_tokens(60)
        second.take_tokens(40)
        with pytest.raises(OverloadedError, match="100 tokens"):
            second.take_tokens(1)


def test_a_request_alone_is_never_told_to_retry() -> None:
    admission = Admission(max_requests=9, max_tokens=100)

    with admission.admit() as permit:
        permit.take_tokens(5000)

        assert admission.num_tokens == 5000


def test_a_failing_request_gives_back_what_it_held() -> None:
    admission = Admission(max_requests=9, max_tokens=100)

    def fail() -> None:
        with admission.admit() as permit:
            permit.take_tokens(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert (admission.num_requests, admission.num_tokens) == (0, 0)
