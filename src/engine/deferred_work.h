// Work on storages that is put off until somebody wants one of them, such as the update of a parameter.
// Thread-safety: guarded by the engine's lock, but for run().
#pragma once
#include <bottomless/result.h>

#include <optional>
#include <thread>
#include <vector>

namespace bottomless {

struct Storage;

class DeferredWork {
 public:
  virtual ~DeferredWork() = default;
  // Called once by whoever comes first, with nothing locked; again if it failed. Pins what it works on
  // as any operation does, and either does all of its work or none.
  virtual Result<void> run() = 0;

 private:
  friend class Engine;
  struct Touched {
    Storage* storage;
    bool written;
  };
  std::vector<Touched> storages_;
  std::optional<std::thread::id> runner_;
};

}  // namespace bottomless
