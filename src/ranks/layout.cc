#include "ranks/layout.h"

#include <algorithm>
#include <numeric>

namespace bottomless {

std::vector<Share> even_shares(Bytes elements, Bytes element_bytes, int ranks) {
  constexpr Bytes kUnit = 1024;
  const auto count = static_cast<Bytes>(ranks);
  const Bytes units = (elements + kUnit - 1) / kUnit;
  std::vector<Share> shares;
  Bytes begin = 0;
  for (Bytes rank = 0; rank < count; ++rank) {
    const Bytes end = std::min(elements, (rank + 1) * units / count * kUnit);
    shares.push_back({begin * element_bytes, end * element_bytes});
    begin = end;
  }
  shares.back().end = elements * element_bytes;
  return shares;
}

std::vector<Share> whole_share(Bytes bytes, int owner, int ranks) {
  std::vector<Share> shares;
  for (int rank = 0; rank < ranks; ++rank)
    shares.push_back(rank < owner    ? Share{0, 0}
                     : rank == owner ? Share{0, bytes}
                                     : Share{bytes, bytes});
  return shares;
}

Node node_of(int rank, int ranks, int per_node) {
  if (per_node == 0) return {.first = 0, .ranks = ranks};
  const int first = rank / per_node * per_node;
  return {.first = first, .ranks = std::min(per_node, ranks - first)};
}

std::vector<Share> even_shares_within(const Node& node, Bytes elements, Bytes element_bytes,
                                      int ranks) {
  const Bytes all = elements * element_bytes;
  const std::vector<Share> within = even_shares(elements, element_bytes, node.ranks);
  std::vector<Share> shares(static_cast<size_t>(node.first), Share{0, 0});
  shares.insert(shares.end(), within.begin(), within.end());
  shares.resize(static_cast<size_t>(ranks), Share{all, all});
  return shares;
}

std::vector<int> owners_of(const std::vector<Bytes>& sizes, int ranks) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<Bytes> held(static_cast<size_t>(ranks), 0);
  std::vector<int> owners(sizes.size(), 0);
  for (const size_t i : order) {
    const auto least = std::min_element(held.begin(), held.end());
    *least += sizes[i];
    owners[i] = static_cast<int>(least - held.begin());
  }
  return owners;
}

}  // namespace bottomless
