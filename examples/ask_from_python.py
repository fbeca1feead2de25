"""Ask from Python what `simnet` answers on the command line: one run, a sweep, a crossover, advice.

python examples/ask_from_python.py bert_base_10gbit
"""

import argparse

import simnet


def main(name: str) -> None:
    """Print four answers about a scenario."""
    scenario = simnet.load(name)
    run = simnet.simulate(scenario)
    print(run)

    nodes = {"cluster.num_nodes": [2, 4, 8, 16]}
    sweep = simnet.sweep(scenario, nodes, draws=20)
    for point in sweep:
        assert point.speedup is not None
        assert point.speedup_interval is not None
        low, high = point.speedup_interval
        print(f"{point.num_nodes:3} nodes: {point.speedup:5.2f}x ({low:.2f} to {high:.2f})")
    fastest = sweep.to_frame().sort_values("speedup").iloc[-1]
    print(f"most on {fastest['num_nodes']} nodes")

    nic = "cluster.inter_node.bandwidth"
    print(repr(simnet.crossover(scenario, over=nic, start="1 Gbit/s", end="800 Gbit/s", draws=0)))

    advice = simnet.advise(scenario, systems=["BinSGDM", "int8", "local_sgd"])
    print(advice.sentences[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="bert_base_10gbit", help="a shipped experiment or a file")
    main(parser.parse_args().scenario)
