"""Whole iterations: the reference step, where the time goes, strategies against each other, what is refused."""

import pytest
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, LinkCalibration, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import check, num_calls, simulate
from simnet.strategies import BinSGDM, DenseAllReduce, OneBitAdam, Planner
from simnet.workload.workload import Gradient, Workload
from tests.helpers.refusals import refused
from tests.helpers.step_samples import CAP, COSTLY, STRATEGIES, WORKLOAD, scenario
from tests.helpers.topologies import cluster, leaves

BEYOND_NCCL = ("hierarchical", "halving_doubling")


@pytest.mark.parametrize(
    ("algorithm", "num_nodes", "expected_s"),
    [("ring", 8, 0.753784), ("ring", 64, 0.844049), ("hierarchical", 8, 0.669397), ("hierarchical", 64, 0.756477)],
)
def test_a_ddp_step_takes_the_reference_time_within_10_ppm(algorithm, num_nodes, expected_s):
    result = simulate(scenario(DenseAllReduce(algorithm=algorithm, bucket_cap=CAP), num_nodes)).result
    assert result.iteration_s == pytest.approx(expected_s, rel=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_exact_and_folded_iterations_agree_and_the_breakdown_adds_up(strategy):
    folded, exact = (
        simulate(scenario(strategy, 3, 4, calibration=COSTLY, run=RunSettings(fidelity=fidelity))).result
        for fidelity in ("folded", "exact")
    )
    assert folded.iteration_s == pytest.approx(exact.iteration_s, rel=1e-9)
    assert folded.comm_s == pytest.approx(exact.comm_s, rel=1e-9)
    for result in (folded, exact):
        assert result.breakdown.total_s == pytest.approx(result.iteration_s, rel=1e-12)
        assert 0.0 <= result.overlap <= 1.0


def test_gradient_accumulation_adds_compute_but_no_communication():
    once = simulate(scenario()).result
    four = simulate(scenario(run=RunSettings(grad_accumulation=4))).result
    assert four.iteration_s == pytest.approx(once.iteration_s + 3 * 0.12)
    assert four.nic_bytes_per_node == once.nic_bytes_per_node
    assert four.samples_per_s == pytest.approx(4 * 64 * 32 / four.iteration_s)


@pytest.mark.parametrize("strategy", [DenseAllReduce(), BinSGDM(overlap=False), OneBitAdam()], ids=str)
def test_hooks_slow_the_one_backward_that_exchanges_gradients(strategy):
    hooks = Calibration(hook_slowdown=1.5)
    run = RunSettings(grad_accumulation=3)
    assert simulate(scenario(strategy, calibration=hooks, run=run)).result.breakdown.backward_s == pytest.approx(
        (2 + 1.5) * 0.08
    )
    assert simulate(scenario(strategy, 1, 1, calibration=hooks)).result.breakdown.backward_s == pytest.approx(0.08)


def test_communication_slows_the_backward_that_it_overlaps():
    slowed = simulate(scenario(calibration=Calibration(backward_slowdown=2.0))).result.breakdown
    first_piece_s = 0.08 / 18
    assert slowed.backward_s == pytest.approx(first_piece_s + 2 * (0.08 - first_piece_s))
    after = DenseAllReduce(bucket_cap=CAP, overlap=False)
    assert simulate(scenario(after, calibration=Calibration(backward_slowdown=2.0))).result.breakdown.backward_s == (
        pytest.approx(0.08)
    )


@pytest.mark.parametrize(
    ("strategy", "level", "efficiency"),
    [
        (DenseAllReduce(bucket_cap=CAP), "intra_node", 1e-3),
        (DenseAllReduce(bucket_cap=CAP), "inter_node", 1.0),
        (BinSGDM(), "intra_node", 1e-3),
        (BinSGDM(), "inter_node", 0.05),
    ],
    ids=str,
)
def test_links_that_compute_slows_are_slow_during_backward_alone_in_both_executors(strategy, level, efficiency):
    def iteration_s(overlap_efficiency, fidelity="folded", **changed):
        link = LinkCalibration(efficiency=efficiency, overlap_efficiency=overlap_efficiency)
        calibration, run = Calibration(**{level: link}), RunSettings(fidelity=fidelity)
        return simulate(
            scenario(replace(strategy, **changed), 3, 2, calibration=calibration, run=run)
        ).result.iteration_s

    # Folded, all latencies of a phase pass first, so that the end of backward finds a little less of it sent.
    assert iteration_s(0.25) == pytest.approx(iteration_s(0.25, "exact"), rel=1e-4)
    assert iteration_s(0.25) > 1.01 * iteration_s(1.0)
    assert iteration_s(0.25, overlap=False) == pytest.approx(iteration_s(1.0, overlap=False))


@pytest.mark.parametrize("fidelity", ["folded", "exact"])
def test_an_all_reduce_beside_backward_goes_a_part_of_its_way_and_the_rest_at_the_full_rate(fidelity):
    step = Workload(
        tensors=(Gradient(num_elements=250_000_000), Gradient(num_elements=1)),
        forward_s=Duration(0.0),
        backward_s=Duration(4.0),
    )
    result = simulate(
        Scenario(
            cluster=cluster(2, 1),
            workload=step,
            calibration=Calibration(inter_node=LinkCalibration(overlap_efficiency=0.25, alpha_s=Duration(0.0))),
            strategy=DenseAllReduce(algorithm="ring", bucketing="per_tensor"),
            run=RunSettings(fidelity=fidelity),
        )
    ).result
    # 1 GB needs 0.8 s of the NIC; the 2 s of backward left when it is ready are worth 0.5 s.
    assert result.iteration_s == pytest.approx(4.3)


D = 110e6


def test_one_bit_adam_counts_its_dense_stage_end_to_end():
    run = RunSettings(steps=1000)
    result = simulate(scenario(OneBitAdam(dense_steps=200, dense=DenseAllReduce()), run=run, baseline=DenseAllReduce()))
    dense_s = simulate(scenario(DenseAllReduce())).result.iteration_s
    assert result.result.dense_iteration_s == pytest.approx(dense_s)
    assert result.result.total_s == pytest.approx(200 * dense_s + 800 * result.result.iteration_s)
    assert result.end_to_end_speedup == pytest.approx(1000 * dense_s / result.result.total_s)
    assert result.speedup > result.end_to_end_speedup > 1


def test_without_kernel_times_the_compressed_update_takes_the_optimizers_time_and_says_so():
    bare = simulate(scenario(BinSGDM(rounding="random")))
    assert bare.result.breakdown.optimizer_s == pytest.approx(0.005)
    names = "binsgdm_apply, binsgdm_update, mean, merge, quantize"
    assert any(f"no time for kernels {names}" in note for note in bare.notes)
    timed = simulate(scenario(BinSGDM(), calibration=COSTLY))
    assert timed.result.breakdown.optimizer_s == 0.0
    assert timed.result.breakdown.encode_s > 0
    assert not any("no time for kernels" in note for note in timed.notes)
    adam_only = Calibration(kernels={"adam_update": KernelTime(s_per_element=Duration(1e-10))})
    other = simulate(scenario(BinSGDM(), calibration=adam_only))
    assert other.result.breakdown.optimizer_s == pytest.approx(0.005), "kernels of others make none free of charge"
    assert any("no time for kernels binsgdm_apply" in note for note in other.notes)


def test_a_calibration_of_another_gpu_or_link_is_noted():
    elsewhere = Calibration(
        kind="published", gpu="V100", inter_node=LinkCalibration(efficiency=0.9, measured_on=Bandwidth(5e9))
    )
    notes = simulate(scenario(calibration=elsewhere, cluster=cluster(2, 2, gpu="A100"))).notes
    assert any("are those of V100-32GB, the cluster has A100-80GB" in note for note in notes)
    assert any("inter_node links was measured on 40 Gbit/s, not on the cluster's 10 Gbit/s" in note for note in notes)
    matching = Calibration(gpu="A100", inter_node=LinkCalibration(measured_on=Bandwidth(1.25e9)))
    assert not any("measured on 1" in n for n in simulate(scenario(calibration=matching)).notes)


def test_casts_stream_memory_whatever_the_codec_does_and_a_measured_kernel_replaces_its_estimate():
    cast = DenseAllReduce(wire_dtype="bf16", bucketing="fused", overlap=False)
    slow = Calibration(memory_bytes_per_s=Bandwidth(1e12), codec_efficiency=0.1)
    assert simulate(scenario(cast, calibration=slow)).result.breakdown.encode_s == pytest.approx(6 * D / 1e12)
    kernels = {"binsgdm_update": KernelTime(launch_s=Duration(1e-3), s_per_element=Duration(1e-10))}
    strategy = BinSGDM(bucketing="fused", overlap=False, rounding="random")
    encode_s = simulate(scenario(strategy, calibration=Calibration(kernels=kernels))).result.breakdown.encode_s
    assert encode_s == pytest.approx(1e-3 + 1e-10 * D)


@pytest.mark.parametrize(("name", "others"), [("auto", ("ring", "tree")), ("any", ("ring", "tree", *BEYOND_NCCL))])
def test_auto_takes_the_fastest_that_nccl_has_and_any_the_fastest_of_all(name, others):
    def seconds(algorithm):
        fused = DenseAllReduce(algorithm=algorithm, bucketing="fused", overlap=False)
        return simulate(scenario(fused, 4))

    chosen = seconds(name)
    named = {algorithm: seconds(algorithm).result.iteration_s for algorithm in others}
    assert chosen.result.iteration_s == min(named.values()) == named[chosen.result.algorithm]
    beyond = [note for note in chosen.notes if "which NCCL does not have" in note]
    assert bool(beyond) == (chosen.result.algorithm in BEYOND_NCCL)
    assert all(f" takes {chosen.result.algorithm}, which" in note for note in beyond)
    assert name != "any" or beyond, "on this cluster an algorithm that NCCL does not have is the fastest"


def test_oversubscription_slows_what_crosses_leaves_and_only_that():
    def seconds(oversubscription, nodes_per_leaf):
        fabric = leaves(nodes_per_leaf, oversubscription)
        return simulate(scenario(OneBitAdam(), fabric=fabric)).result.iteration_s

    assert seconds(8.0, 4) > seconds(1.0, 4) * 1.2
    assert seconds(8.0, 8) == seconds(1.0, 8)


def test_more_nics_act_as_one_of_their_sum():
    several = scenario(cluster=cluster(8, 8, nics_per_node=4))
    link = several.cluster.inter_node
    wide = cluster(8, 8, inter_node=type(link)(bytes_per_s=Bandwidth(4 * link.bytes_per_s), alpha_s=link.alpha_s))
    assert simulate(several).result.iteration_s == simulate(scenario(cluster=wide)).result.iteration_s


SLOW = {"slow_nodes": (SlowNode(node=0, nic_slowdown=2.0),), "run": RunSettings(fidelity="folded")}
NOTHING = Workload(gradient_bytes=Size(4.0), forward_s=Duration(0.0), backward_s=Duration(0.0))


@pytest.mark.parametrize(
    ("changes", "functions", "said"),
    [
        (
            {"strategy": DenseAllReduce(algorithm="halving_doubling"), "num_nodes": 3},
            (simulate, check),
            "needs powers of two",
        ),
        (SLOW, (simulate, check), "nodes that are all alike"),
        ({"num_nodes": 1024, "run": RunSettings(fidelity="exact")}, (simulate,), " sends: at most 20000000"),
        ({"num_nodes": 1, "ranks_per_node": 1, "workload": NOTHING}, (simulate,), "an iteration of 0 s"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_simulate_and_by_check(changes, functions, said):
    for function in functions:
        with refused(said):
            function(scenario(**changes))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Calibration(memory_bytes_per_s=Bandwidth(0.0)), "memory_bandwidth: .* at least 1 MB/s"),
        (lambda: Planner(start_up_s=Duration(1.0), bytes_per_s=Bandwidth(0.0)), "bandwidth: .* at least 1 B/s"),
        (lambda: Workload(gradient_bytes=Size(0.0)), "gradient: '0 B': must be at least 1 B"),
        (lambda: Gradient(num_bytes=Size(0.0)), "bytes: '0 B': must be at least 1 B"),
        (lambda: scenario(OneBitAdam(dense_steps=5)), "dense_steps: 5: has no effect without run.steps"),
        (lambda: scenario(OneBitAdam(dense_steps=5), run=RunSettings(steps=4)), "dense_steps: 5: more than run.steps"),
    ],
)
def test_values_that_cannot_be_are_refused_where_they_are_built(build, said):
    with pytest.raises(ValueError, match=said):
        build()


@pytest.mark.parametrize(("num_nodes", "bounded"), [(7, True), (8, False)])
def test_a_ragged_tree_says_that_it_is_a_bound_and_is_followed_unless_asked_not_to_be(num_nodes, bounded):
    tree = DenseAllReduce(algorithm="tree")
    runs = {
        fidelity: simulate(scenario(tree, num_nodes, 1, run=RunSettings(fidelity=fidelity)))
        for fidelity in ("folded", "auto", "exact")
    }
    for fidelity, run in runs.items():
        is_off = bounded and fidelity == "folded"
        assert any("is an approximation" in note for note in run.notes) is is_off
        assert (run.result.approximation > 0) is is_off
    exact_s, folded = runs["exact"].result.iteration_s, runs["folded"].result
    assert runs["auto"].result.iteration_s == pytest.approx(exact_s, rel=1e-9)
    assert exact_s * (1 - 1e-9) <= folded.iteration_s <= exact_s * (1 + folded.approximation) * (1 + 1e-9)


@pytest.mark.slow
def test_more_bytes_never_make_a_tree_faster():
    fused = DenseAllReduce(algorithm="tree", bucketing="fused", overlap=False)
    curve = Calibration(inter_node=LinkCalibration(efficiency=0.3))
    sizes = [1e5 * 1.1**k for k in range(60)]
    times = [
        simulate(
            scenario(fused, 7, 2, calibration=curve, workload=replace(WORKLOAD, gradient_bytes=Size(size)))
        ).result.comm_s
        for size in sizes
    ]
    assert times == sorted(times)


def test_an_exact_run_tells_of_every_round():
    exact = scenario(OneBitAdam(), 2, 2, run=RunSettings(fidelity="exact"), baseline=STRATEGIES[0])
    rounds = []
    simulate(exact, lambda: rounds.append(1))
    assert len(rounds) == num_calls(exact)
    assert num_calls(scenario()) == 0


def test_polling_costs_the_square_of_the_sends_that_are_posted_at_once():
    def comm_s(ranks_per_node, poll_s):
        calibration = Calibration(poll_s=Duration(poll_s))
        return simulate(scenario(OneBitAdam(), 4, ranks_per_node, calibration=calibration)).result.comm_s

    for ranks_per_node in (2, 8):
        sends = 4 * ranks_per_node - 1
        added_s = comm_s(ranks_per_node, 1e-6) - comm_s(ranks_per_node, 0.0)
        assert added_s == pytest.approx(sends**2 * 1e-6, rel=1e-6)


def test_parameters_move_after_all_ranks_have_agreed_that_the_step_counts():
    result = simulate(scenario(BinSGDM(bucket_cap=Size(4e6)), calibration=COSTLY)).result
    assert result.num_buckets > 1
    last = max(span.end_s for span in result.spans if span.stream == "communication")
    moved = [span for span in result.spans if span.name == "binsgdm_apply"]
    assert len(moved) == result.num_buckets
    assert all(span.start_s >= last for span in moved)
    ring = simulate(scenario(BinSGDM(bucket_cap=Size(4e6), finite_check="ring"), calibration=COSTLY)).result
    assert ring.comm_s > result.comm_s, "auto takes what is fastest for a few bytes"
