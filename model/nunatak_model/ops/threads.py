"""Threads of the processor: how many a computation takes."""

import threading

import torch


def compute_without_helpers() -> None:
    """Let the calling thread compute alone from now on.

    Every other that has computed goes on as before; one that begins in this very moment may stay
    alone as well.

    Each thread that computes has helpers of its own, as many as there are cores. Two such teams on
    the same cores wait for each other's turns of the scheduler within each operation, so both take
    many times as long: work that shall not disturb the batches is done by one thread.
    """
    others = torch.get_num_threads()
    if others == 1:
        return
    torch.set_num_threads(1)
    # What was set last also holds for threads that have not computed yet; so it is set back, on a
    # thread that will not compute.
    resetting = threading.Thread(target=torch.set_num_threads, args=(others,))
    resetting.start()
    resetting.join()
