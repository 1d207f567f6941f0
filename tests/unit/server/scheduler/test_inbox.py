import threading

from nunatak_server.engine.engine import Inbox


def test_items_come_out_in_the_order_they_were_put() -> None:
    inbox = Inbox[int]()

    inbox.put([1, 2])
    inbox.put([3])

    assert inbox.take(block=False) == [1, 2, 3]
    assert inbox.take(block=False) == []


def test_a_closed_inbox_gives_what_it_holds_and_then_none() -> None:
    inbox = Inbox[int]()
    inbox.put([1])

    inbox.close()

    assert inbox.put([2]) is False
    assert inbox.take(block=True) == [1]
    assert inbox.take(block=True) is None


def test_closing_wakes_a_waiting_taker() -> None:
    inbox = Inbox[int]()
    taken: list[list[int] | None] = []
    taker = threading.Thread(target=lambda: taken.append(inbox.take(block=True)))
    taker.start()

    inbox.close()
    taker.join()

    assert taken == [None]


def test_nothing_is_lost_or_doubled_between_threads() -> None:
    inbox = Inbox[int]()
    taken: list[int] = []

    def take_all() -> None:
        while (items := inbox.take(block=True)) is not None:
            taken.extend(items)

    taker = threading.Thread(target=take_all)

    def give(start: int) -> None:
        for index in range(500):
            inbox.put([start + index])

    givers = [threading.Thread(target=give, args=(start,)) for start in (0, 500, 1000)]
    for thread in (taker, *givers):
        thread.start()
    for giver in givers:
        giver.join()
    inbox.close()
    taker.join()

    assert sorted(taken) == list(range(1500))
