// A DDP step by ring all-reduces in SimGrid (S4U), the same cluster as benchmarks/beside_simgrid.py gives simnet.
//
// Usage: beside_simgrid NODES RANKS_PER_NODE PORT_RATE PORT_LATENCY NIC_RATE NIC_LATENCY FORWARD BACKWARD OPTIMIZER
//        SLOWDOWN_OF_RANK_0 BUCKET... (SI units). Prints the simulated seconds and the CPU seconds of the simulation.
#include <simgrid/s4u.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Step {
  int ranks;
  double forward, backward, optimizer, slowdown;
  std::vector<double> buckets; // bytes
};

// A rank: each bucket is ready when backward has made it, and goes around the ring of all ranks in 2 (n - 1) hops.
static void rank_of(int rank, const Step* step, const std::vector<sg4::Mailbox*>* boxes) {
  const double factor = rank == 0 ? step->slowdown : 1.0;
  double total = 0, made = 0;
  for (double bytes : step->buckets) total += bytes;
  static char chunk;
  sg4::Mailbox* own  = (*boxes)[rank];
  sg4::Mailbox* next = (*boxes)[(rank + 1) % step->ranks];
  for (double bytes : step->buckets) {
    made += bytes;
    sg4::this_actor::sleep_until(factor * (step->forward + step->backward * made / total));
    for (int hop = 0; hop < 2 * (step->ranks - 1); hop++) {
      auto sent = next->put_async(&chunk, static_cast<uint64_t>(bytes / step->ranks));
      own->get<char>();
      sent->wait();
    }
  }
  sg4::this_actor::sleep_for(factor * step->optimizer);
}

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  // Bandwidths and latencies as they are: no slow start, no window, no traffic of acknowledgements.
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/crosstraffic:no");
  const int nodes = std::atoi(argv[1]), local_ranks = std::atoi(argv[2]);
  double number[8];
  for (int i = 0; i < 8; i++) number[i] = std::atof(argv[3 + i]);
  Step step{nodes * local_ranks, number[4], number[5], number[6], number[7], {}};
  for (int i = 11; i < argc; i++) step.buckets.push_back(std::atof(argv[i]));

  auto* root = sg4::create_star_zone("root");
  std::vector<sg4::Host*> hosts;
  for (int node = 0; node < nodes; node++) {
    const std::string name = std::to_string(node);
    auto* zone = sg4::create_star_zone("node" + name);
    zone->set_parent(root);
    auto* gateway = zone->create_router("router" + name);
    for (int local = 0; local < local_ranks; local++) {
      const std::string place = name + "." + std::to_string(local);
      auto* host = zone->create_host("rank" + place, 1e9);
      auto* port = zone->create_split_duplex_link("port" + place, number[0])->set_latency(number[1] / 2)->seal();
      zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr,
                      {{dynamic_cast<sg4::SplitDuplexLink*>(port), sg4::LinkInRoute::Direction::UP}}, true);
      hosts.push_back(host);
    }
    zone->add_route(gateway, nullptr, nullptr, nullptr, {}, true);
    zone->seal();
    auto* nic = root->create_split_duplex_link("nic" + name, number[2])->set_latency((number[3] - number[1]) / 2)->seal();
    root->add_route(zone->get_netpoint(), nullptr, gateway, nullptr,
                    {{dynamic_cast<sg4::SplitDuplexLink*>(nic), sg4::LinkInRoute::Direction::UP}}, true);
  }
  root->seal();

  std::vector<sg4::Mailbox*> boxes;
  for (int rank = 0; rank < step.ranks; rank++) boxes.push_back(sg4::Mailbox::by_name(std::to_string(rank)));
  for (int rank = 0; rank < step.ranks; rank++)
    sg4::Actor::create("rank", hosts[rank], rank_of, rank, &step, &boxes);
  const std::clock_t start = std::clock();
  engine.run();
  std::printf("%.9f %.6f\n", sg4::Engine::get_clock(), double(std::clock() - start) / CLOCKS_PER_SEC);
  return 0;
}
