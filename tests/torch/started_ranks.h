// Programs as torchrun starts them: all ranks on this machine, at the same time.
// Thread-safety: free functions.
#pragma once
#include <string>
#include <vector>

namespace bottomless {

struct Ended {
  int code = -1;
  std::string out;  // and what went to stderr
  std::vector<std::string> lines() const;
};

int free_port();
Ended run_one(const std::string& command);
std::vector<Ended> run_ranks(int ranks, const std::string& command);

}  // namespace bottomless
