"""A ring all-reduce as a SimPy beginner writes it, one process, Resource and Store a rank and hop: the yardstick."""

import simpy


def ring_all_reduce_s(ranks: int, message_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """Return the simulated time of a flat ring whose every hop is simulated."""
    env = simpy.Environment()
    wires = [simpy.Resource(env) for _ in range(ranks)]
    inboxes = [simpy.Store(env) for _ in range(ranks)]
    hop_s = alpha_s + message_bytes / ranks / bytes_per_s

    def rank(number: int):
        following = (number + 1) % ranks
        for _ in range(2 * (ranks - 1)):
            with wires[number].request() as wire:
                yield wire
                yield env.timeout(hop_s)
            yield inboxes[following].put(1)
            yield inboxes[number].get()

    for number in range(ranks):
        env.process(rank(number))
    env.run()
    return float(env.now)
