"""The GPU: processor sharing, slowdown while communication runs, and where the seconds went."""

import pytest
import simpy

from simnet.engine.gpu import Gpu


def gpu(slowdown: float = 1.0, comm_slowdown: float = 1.0) -> tuple[simpy.Environment, Gpu]:
    env = simpy.Environment()
    device = Gpu(env, comm_slowdown=comm_slowdown)
    device.set_slowdown(slowdown)
    return env, device


def test_a_kernel_alone_takes_its_time():
    env, device = gpu()
    env.run(device.run("forward", 2.0))
    assert env.now == pytest.approx(2.0)
    assert device.busy_s == {"forward": pytest.approx(2.0)}


def test_two_kernels_share_and_the_seconds_by_part_add_up_to_the_time():
    env, device = gpu()
    long, short = device.run("backward", 3.0), device.run("encode", 1.0)
    env.run(short)
    assert env.now == pytest.approx(2.0)
    env.run(long)
    assert env.now == pytest.approx(4.0)
    assert device.busy_s == {"backward": pytest.approx(3.0), "encode": pytest.approx(1.0)}


def test_a_slow_node_takes_longer():
    env, device = gpu(slowdown=1.5)
    env.run(device.run("forward", 2.0))
    assert env.now == pytest.approx(3.0)


def test_communication_slows_only_while_it_runs():
    env, device = gpu(comm_slowdown=2.0)
    done = device.run("backward", 3.0)

    def communicate():
        yield env.timeout(1.0)
        device.communication_starts()
        yield env.timeout(2.0)
        device.communication_ends()

    env.process(communicate())
    env.run(done)
    assert env.now == pytest.approx(4.0)
    assert device.busy_s["backward"] == pytest.approx(4.0)


def test_nothing_to_run_is_done_at_once():
    env, device = gpu()
    env.run(device.run("optimizer", 0.0))
    assert env.now == 0.0
