#include "torch/shard/c10d_transport.h"

#include <ATen/ops/from_blob.h>

namespace bottomless {
namespace {

constexpr int kTag = 0;

std::vector<at::Tensor> tensor_over(const std::byte* bytes, size_t count) {
  // The backend takes tensors; what is sent is not written to.
  return {at::from_blob(const_cast<std::byte*>(bytes), {static_cast<int64_t>(count)}, at::kByte)};
}

}  // namespace

template <class Start>
Result<void> C10dTransport::run(Start start) {
  constexpr const char* kClosed = "the connection was closed here";
  try {
    c10::intrusive_ptr<c10d::Work> work;
    {
      MutexLock lock(mutex_);
      if (closed_) return Error{Code::io, kClosed};
      work = start();
      under_way_.insert(work.get());
    }
    bool done = false;
    std::string failure = kClosed;
    try {
      done = work->wait();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    MutexLock lock(mutex_);
    under_way_.erase(work.get());
    if (!done) return Error{Code::io, failure.substr(0, failure.find('\n'))};
    return {};
  } catch (const std::exception& error) {
    const std::string why = error.what();
    return Error{Code::io, why.substr(0, why.find('\n'))};
  }
}

Result<void> C10dTransport::send(int to, std::span<const std::byte> bytes) {
  std::vector<at::Tensor> tensors = tensor_over(bytes.data(), bytes.size());
  return run([&] { return backend_->send(tensors, to, kTag); });
}

Result<void> C10dTransport::receive(int from, std::span<std::byte> into) {
  std::vector<at::Tensor> tensors = tensor_over(into.data(), into.size());
  return run([&] { return backend_->recv(tensors, from, kTag); });
}

void C10dTransport::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (c10d::Work* work : under_way_) work->abort();
}

}  // namespace bottomless
