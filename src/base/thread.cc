#include "base/thread.h"

#include <csignal>
#include <memory>
#include <utility>

#include "base/errno_error.h"

namespace bottomless {
namespace {

struct Start {
  std::string name;
  std::function<void()> body;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name.substr(0, 15).c_str());
  start->body();
  return nullptr;
}

}  // namespace

Thread::Thread(Thread&& other) noexcept
    : handle_(other.handle_), joinable_(std::exchange(other.joinable_, false)) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  join();
  handle_ = other.handle_;
  joinable_ = std::exchange(other.joinable_, false);
  return *this;
}

Thread::~Thread() { join(); }

void Thread::join() {
  if (std::exchange(joinable_, false)) pthread_join(handle_, nullptr);
}

Result<Thread> Thread::start(std::string name, std::function<void()> body) {
  auto start = std::make_unique<Start>(Start{std::move(name), std::move(body)});
  // A signal of the user's program must never run its handler on our stack; new threads inherit the
  // mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  Thread thread;
  const int failed = pthread_create(&thread.handle_, &attributes, &run, start.get());
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) return errno_error(failed, "start thread '" + start->name + "'");
  start.release();  // NOLINT(bugprone-unused-return-value): the thread owns it now
  thread.joinable_ = true;
  return thread;
}

}  // namespace bottomless
