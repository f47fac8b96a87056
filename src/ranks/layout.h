// Who has which part of what is sharded. Pure.
#pragma once
#include <bottomless/bytes.h>

#include <vector>

namespace bottomless {

struct Share {
  Bytes begin = 0;
  Bytes end = 0;
  Bytes bytes() const { return end - begin; }
};

// Of `elements` of `element_bytes` each, a contiguous share for each rank, in the order of ranks. Cut at multiples of 1024
// elements, so that neither pages of the disk nor numbers that share a scale are torn; the last ones may be smaller, or
// nothing. 10,000 float32 over 4 ranks: 0 to 3072, to 6144, to 9216, to 10,000 elements.
std::vector<Share> even_shares(Bytes elements, Bytes element_bytes, int ranks);
// All of it for one.
std::vector<Share> whole_share(Bytes bytes, int owner, int ranks);
// The ranks of one machine, which are consecutive.
struct Node {
  int first = 0;
  int ranks = 0;
  bool has(int rank) const { return rank >= first && rank < first + ranks; }
};
// Where every `per_node` ranks are one; the last may have fewer. 0: all of them are.
Node node_of(int rank, int ranks, int per_node);
// Even shares for the ranks of a node alone; by rank, and nothing for the others.
std::vector<Share> even_shares_within(const Node& node, Bytes elements, Bytes element_bytes,
                                      int ranks);
// Which rank owns what as a whole, such that the largest sum is small: the largest first, each to who has least.
std::vector<int> owners_of(const std::vector<Bytes>& sizes, int ranks);

}  // namespace bottomless
