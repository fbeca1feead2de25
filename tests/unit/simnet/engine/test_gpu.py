"""The GPU: processor sharing, slowdown while communication runs, and where the seconds went."""

import pytest
import simpy

from simnet.engine.gpu import Gpu


def gpu(slowdown: float = 1.0, comm_slowdown: float = 1.0) -> tuple[simpy.Environment, Gpu]:
    env = simpy.Environment()
    device = Gpu(env, comm_slowdown=comm_slowdown)
    device.set_slowdown(slowdown)
    return env, device


def test_two_kernels_share_and_the_seconds_by_part_add_up_to_the_time():
    env, device = gpu()
    long, short = device.run("backward", 3.0), device.run("encode", 1.0)
    env.run(short)
    assert env.now == pytest.approx(2.0)
    env.run(long)
    assert env.now == pytest.approx(4.0)
    assert device.busy_s == {"backward": pytest.approx(3.0), "encode": pytest.approx(1.0)}
