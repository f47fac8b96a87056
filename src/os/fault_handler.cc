#include "os/fault_handler.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "base/errno_error.h"

namespace bottomless {
namespace {

// A request lives on the stack of the faulting thread, which waits until it is answered.
struct Request {
  const void* address;
  Access access;
  FaultHandler::Origin origin;
  std::atomic<uint32_t> answer;  // 0: waiting, then one of the below; futex word
};
constexpr uint32_t kServed = 1;
constexpr uint32_t kNotOurs = 2;

// What the signal handler needs; all but `next` is set once before it is installed.
struct HandlerState {
  FaultHandler::Owns owns;
  FaultHandler::ServeHere serve_here;
  FaultHandler::OriginHere origin_here;
  FaultHandler* handler;
  int requests;
  // Who gets what is not ours. Never changed in place, because a handler may be reading it, and
  // never freed: programs install a handful in their life.
  std::atomic<const struct sigaction*> next;
};
// Who else handles SIGSEGV is set by handlers as well (Python's faulthandler does): no allocation.
// Each is kept once.
const struct sigaction* kept(const struct sigaction& action) noexcept {
  constexpr size_t kPlaces = 64;
  struct Place {
    std::atomic<int> state;  // 0: free, 1: being written, 2: written
    struct sigaction action;
  };
  constinit static std::array<Place, kPlaces> places{};
  const auto same = [&](const struct sigaction& other) {
    return other.sa_flags == action.sa_flags && other.sa_sigaction == action.sa_sigaction &&
           std::memcmp(&other.sa_mask, &action.sa_mask, sizeof action.sa_mask) == 0;
  };
  for (Place& place : places) {
    int expected = 0;
    if (place.state.compare_exchange_strong(expected, 1, std::memory_order_acquire)) {
      place.action = action;
      place.state.store(2, std::memory_order_release);
      return &place.action;
    }
    if (expected == 2 && same(place.action)) return &place.action;
  }
  void* page =
      mmap(nullptr, sizeof action, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : new (page) struct sigaction(action);
}

HandlerState g_handler;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): a handler
                         // has no other argument

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a handler asks it of its own thread
thread_local bool t_serves = false;  // this thread is a service thread

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

bool was_write(void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // of the page-fault error code
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
#else
  return true;  // a write serves a read as well, at the price of a needless write-back
#endif
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& next = *g_handler.next.load(std::memory_order_acquire);
  const bool sent = info->si_code <= 0;  // by kill() or raise(), and not by an access
  if (next.sa_handler == SIG_IGN && sent) return;
  if (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN) {
    struct sigaction fatal {};
    fatal.sa_handler = SIG_DFL;
    ::sigaction(signal, &fatal, nullptr);
    if (sent) raise(signal);  // an access repeats itself, and ends the process as it would have
  } else if ((next.sa_flags & SA_SIGINFO) != 0) {
    next.sa_sigaction(signal, info, context);
  } else {
    next.sa_handler(signal);
  }
}

bool ask_service_thread(Request& request) {
  Request* pointer = &request;
  // NOLINTNEXTLINE(bugprone-sizeof-expression)
  if (write(g_handler.requests, &pointer, sizeof pointer) != sizeof pointer) return false;
  while (request.answer.load(std::memory_order_acquire) == 0)
    futex(request.answer, FUTEX_WAIT_PRIVATE, 0);
  return request.answer.load(std::memory_order_acquire) == kServed;
}

void handle(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool by_access = info->si_code == SEGV_ACCERR || info->si_code == SEGV_MAPERR;
  bool served = false;
  if (by_access && g_handler.owns(info->si_addr)) {
    Request request{info->si_addr, was_write(context) ? Access::write : Access::read, {}, {0}};
    const std::optional<bool> here = g_handler.serve_here(request.address, request.access);
    if (!here) request.origin = g_handler.origin_here();
    served = here ? *here : ask_service_thread(request);
  }
  errno = saved;
  if (!served) pass_on(signal, info, context);
}

}  // namespace

Result<void> FaultHandler::start(Hooks hooks) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error(errno, "make a pipe for the fault handler");
  requests_out_ = UniqueFd(ends[0]);
  requests_in_ = UniqueFd(ends[1]);
  serve_ = std::move(hooks.serve);
  prepare_ = hooks.prepare;
  g_handler.owns = hooks.owns;
  g_handler.serve_here = hooks.serve_here;
  g_handler.origin_here = hooks.origin_here;
  g_handler.handler = this;
  g_handler.requests = requests_in_.get();
  if (Result<void> started = start_thread(); !started.ok()) return started;

  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  struct sigaction before {};
  if (::sigaction(SIGSEGV, nullptr, &before) != 0)
    return errno_error(errno, "ask for the handler of SIGSEGV");
  g_handler.next.store(kept(before), std::memory_order_release);
  if (::sigaction(SIGSEGV, &action, nullptr) != 0)
    return errno_error(errno, "install the fault handler");
  return {};
}

int FaultHandler::sigaction_of_others(int signal, const struct sigaction* action,
                                      struct sigaction* before) noexcept {
  const struct sigaction* now = g_handler.next.load(std::memory_order_acquire);
  if (signal != SIGSEGV || now == nullptr) return ::sigaction(signal, action, before);
  if (action != nullptr) {
    const struct sigaction* wanted = kept(*action);
    if (wanted == nullptr) return -1;  // errno says why
    now = g_handler.next.exchange(wanted, std::memory_order_acq_rel);
  }
  if (before != nullptr) *before = *now;
  return 0;
}

sighandler_t FaultHandler::signal_of_others(int signal, sighandler_t handler) noexcept {
  if (signal != SIGSEGV) return ::signal(signal, handler);
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  struct sigaction before {};
  return sigaction_of_others(signal, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

Result<void> FaultHandler::start_thread() {
  MutexLock lock(mutex_);
  if (listening_.load() > 0) return {};  // somebody else has started one
  listening_.fetch_add(1);
  Result<Thread> thread = Thread::start("bl-faults", [this] { run(); });
  if (!thread.ok()) {
    listening_.fetch_sub(1);
    return std::move(thread).error();
  }
  threads_.push_back(std::move(thread).value());
  return {};
}

void FaultHandler::before_waiting() {
  if (!t_serves || g_handler.handler->listening_.load() > 0) return;
  if (Result<void> started = g_handler.handler->start_thread(); !started.ok())
    std::fprintf(stderr, "bottomless: serve faults: %s\n", started.error().message.c_str());
}

void FaultHandler::run() {
  prepare_();
  t_serves = true;
  for (;;) {
    Request* request = nullptr;
    // NOLINTNEXTLINE(bugprone-sizeof-expression)
    const ssize_t got = read(requests_out_.get(), &request, sizeof request);
    if (got < 0 && errno == EINTR) continue;
    listening_.fetch_sub(1);
    // NOLINTNEXTLINE(bugprone-sizeof-expression)
    if (got != sizeof request) return;
    Result<bool> served = serve_(request->address, request->access, request->origin);
    if (!served.ok()) {
      // The program cannot be told by an exception: it touched memory directly. Say why before it
      // ends.
      std::fprintf(stderr, "bottomless: bring back the memory at %p: %s\n", request->address,
                   served.error().message.c_str());
    }
    listening_.fetch_add(1);
    request->answer.store(served.ok() && served.value() ? kServed : kNotOurs,
                          std::memory_order_release);
    futex(request->answer, FUTEX_WAKE_PRIVATE, 1);
  }
}

}  // namespace bottomless
