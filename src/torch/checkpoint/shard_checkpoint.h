// Checkpoints over ranks, of logical tensors: whole, by name, whoever had which share of them. Each tensor is written by
// one rank into its own safetensors file; it pulls the shares from their owners piece by piece, so that no rank ever holds
// a second copy. Rank 0 commits what all have written (checkpoint/commit.h). Reading is each rank's own
// business (checkpoint_reader.h).
// Lifetime: the Sharding outlives its saves. Errors are thrown as torch's.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "checkpoint/commit.h"
#include "checkpoint/files.h"
#include "checkpoint/tensor_file_writer.h"
#include "torch/shard/sharding.h"

namespace bottomless {

struct LogicalTensor {
  TensorSpec spec;               // of the whole
  std::vector<int64_t> strides;  // of the whole: shares are ranges in the order of its memory
  std::vector<Share> shares;     // by rank, in bytes
};

// One save. All ranks make one, with the same number, which no other save had; add the same tensors in the same order;
// and start it. From then on a thread does the rest.
// Thread-safety: wait_until_read() and wait() from any thread, the rest from one at a time.
class ShardedSave {
 public:
  ShardedSave(Sharding& sharding, std::filesystem::path directory, uint64_t step, uint64_t number,
              Keep keep = Keep::last);
  ~ShardedSave();  // waits
  ShardedSave(const ShardedSave&) = delete;
  ShardedSave& operator=(const ShardedSave&) = delete;

  // `own` is this rank's share, dense in memory, where it has one; it must not change until all has been read.
  void add(LogicalTensor tensor, const at::Tensor& own);
  void start(std::string extra);  // a JSON object for the manifest; rank 0's counts

  void wait_until_read();  // by all ranks: from now on shares may change
  void wait();             // until the checkpoint is committed, or everybody knows why not: throws
  bool ended() const;

 private:
  struct Added {
    LogicalTensor tensor;
    at::Tensor own;
  };
  struct Said {
    int64_t number = 0;
    at::Tensor text;
    Bytes wanted = 0;  // by all who listen
  };
  int64_t number_of(size_t index) const;
  void run();
  Result<void> write_shard();
  void write_tensor(size_t index, const at::Tensor& buffer);
  void write_permuted(size_t index);
  void write_piece(size_t index, Bytes at, const at::Tensor& piece);
  void wait_for_readers();
  std::string finish_together(Result<void> written);
  std::string commit_entries(const std::vector<std::string>& entries);
  void say(size_t slot, const std::string& text, int readers);
  void wait_for_listeners();
  std::string hear(int rank, size_t slot);

  Sharding& sharding_;
  const std::filesystem::path directory_;
  const uint64_t step_;
  const uint64_t number_;
  const Keep keep_;
  const std::unique_ptr<Files> files_;
  std::vector<Added> added_;
  std::vector<int> writers_;
  std::string extra_;
  std::unique_ptr<TensorFileWriter> writer_;
  std::vector<Said> said_;
  Bytes charged_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  bool started_ = false;
  bool read_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  bool ended_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::string failure_ BOTTOMLESS_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace bottomless
