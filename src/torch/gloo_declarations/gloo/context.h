// As much of Gloo as torch's ProcessGroupGloo.hpp names. torch's packages come with that header and with Gloo inside
// libtorch, but without Gloo's own headers. Nothing of Gloo is held by value there, only by pointers, so these declarations
// decide neither sizes nor tables of virtual functions: all of them are torch's. For join_ranks.cc alone.
#pragma once
#include <chrono>
#include <string>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming): Gloo's names
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo
// NOLINTEND(readability-identifier-naming)
