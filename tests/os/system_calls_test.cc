// The redirected calls of libc on memory of an engine that is away, and on memory of others; tests/torch/system_calls_test.cc
// has all of them on tensors.
#include "os/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "os/calls.h"
#include "os/managed_memory.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr Bytes kMemory = 2_MiB;
constexpr Bytes kShare = kMemory / 16;  // what one call may pin
constexpr Bytes kLargest = 3 * kShare + 1;

const Calls& load_calls(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  return *reinterpret_cast<GetCalls>(dlsym(handle, "calls_of_library"))();
}
const Calls& libc() {
  static const Calls& calls = load_calls(IMPORTERS "/libcalls.so");
  return calls;
}

struct Ends {
  explicit Ends(int type) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, type, 0, ends.data()), 0);
    here = UniqueFd(ends[0]);
    there = UniqueFd(ends[1]);
  }
  UniqueFd here, there;
};

UniqueFd temporary_file() {
  FILE* file = std::tmpfile();
  EXPECT_NE(file, nullptr);
  UniqueFd fd(fcntl(fileno(file), F_DUPFD_CLOEXEC, 0));
  std::fclose(file);
  return fd;
}

// All of it, in as many calls as it takes; nothing comes in between.
bool moved_all(Bytes bytes, const std::function<ssize_t(Bytes done)>& call) {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t moved = call(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    done += static_cast<Bytes>(moved);
  }
  return true;
}

class SystemCalls : public testing::Test {
 protected:
  SystemCalls()
      : memory_(
            (libc(), RigOptions{.limit = kMemory, .frames = {.large = 32_KiB, .small = 4_KiB}})) {
    for (const Bytes boundary : {Bytes{1}, 4_KiB, 32_KiB, kShare, 3 * kShare})
      for (const Bytes bytes : {boundary - 1, boundary, boundary + 1}) sizes_.push_back(bytes);
  }

  Rig& rig() { return memory_.rig(); }
  // Of kLargest bytes; away.
  std::byte* away(uint64_t key) {
    std::byte* at = rig().filled(kLargest, key);
    rig().push_out(at);
    return at;
  }
  // The begin of what a buffer with that key holds.
  static std::vector<std::byte> pattern(Bytes bytes, uint64_t key) {
    std::vector<std::byte> made(kLargest);
    write_pattern(made.data(), kLargest, key);
    made.resize(bytes);
    return made;
  }
  static std::vector<std::byte> content_of(int fd, Bytes bytes) {
    std::vector<std::byte> content(bytes + 1);
    const ssize_t got = ::pread(fd, content.data(), content.size(), 0);
    content.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return content;
  }
  // Its begin is what the pattern says, its rest what it was before.
  void expect_received(std::byte* at, Bytes bytes, const std::vector<std::byte>& sent,
                       uint64_t before) {
    Pins pins(rig().engine());
    rig().pin(pins, at, kLargest, Access::read);
    EXPECT_EQ(std::memcmp(at, sent.data(), bytes), 0);
    const std::vector<std::byte> rest = pattern(kLargest, before);
    EXPECT_EQ(std::memcmp(at + bytes, rest.data() + bytes, kLargest - bytes), 0);
  }

  ManagedMemory memory_;
  std::vector<Bytes> sizes_;
};

using Out = std::function<ssize_t(int fd, const std::byte* at, Bytes bytes)>;
using In = std::function<ssize_t(int fd, std::byte* at, Bytes bytes)>;

// Two buffers, so that a boundary is inside.
std::array<iovec, 2> halves(const std::byte* at, Bytes bytes) {
  auto* begin = const_cast<std::byte*>(at);
  return {iovec{begin, bytes / 2}, iovec{begin + bytes / 2, bytes - bytes / 2}};
}

ssize_t through_stream(int fd, const char* mode, const std::function<size_t(FILE*)>& call) {
  FILE* file = fdopen(dup(fd), mode);
  const size_t moved = call(file);
  std::fclose(file);
  return static_cast<ssize_t>(moved);
}

std::vector<std::pair<const char*, Out>> file_writes() {
  return {
      {"write", [](int fd, auto* at, Bytes n) { return libc().write(fd, at, n); }},
      {"writev",
       [](int fd, auto* at, Bytes n) { return libc().writev(fd, halves(at, n).data(), 2); }},
      {"pwrite", [](int fd, auto* at, Bytes n) { return libc().pwrite(fd, at, n, 0); }},
      {"pwritev",
       [](int fd, auto* at, Bytes n) { return libc().pwritev(fd, halves(at, n).data(), 2, 0); }},
      {"fwrite",
       [](int fd, auto* at, Bytes n) {
         return through_stream(fd, "wb", [&](FILE* file) { return libc().fwrite(at, 1, n, file); });
       }},
  };
}

std::vector<std::pair<const char*, In>> file_reads() {
  return {
      {"read", [](int fd, auto* at, Bytes n) { return libc().read(fd, at, n); }},
      {"readv",
       [](int fd, auto* at, Bytes n) { return libc().readv(fd, halves(at, n).data(), 2); }},
      {"pread", [](int fd, auto* at, Bytes n) { return libc().pread(fd, at, n, 0); }},
      {"preadv",
       [](int fd, auto* at, Bytes n) { return libc().preadv(fd, halves(at, n).data(), 2, 0); }},
      {"fread",
       [](int fd, auto* at, Bytes n) {
         return through_stream(fd, "rb", [&](FILE* file) { return libc().fread(at, 1, n, file); });
       }},
  };
}

TEST_F(SystemCalls, WriteToFilesWhatIsAwayAndWhatIsNotOurs) {
  std::byte* at = rig().filled(kLargest, 1);
  const std::vector<std::byte> plain = pattern(kLargest, 1);
  for (const auto& [name, write] : file_writes()) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(name) + " of " + std::to_string(bytes) + " bytes");
      rig().push_out(at);
      for (const std::byte* from : {static_cast<const std::byte*>(at), plain.data()}) {
        const UniqueFd file = temporary_file();
        ASSERT_EQ(write(file.get(), from, bytes), static_cast<ssize_t>(bytes));
        EXPECT_TRUE(content_of(file.get(), bytes) == pattern(bytes, 1));
      }
    }
  }
  EXPECT_GT(memory_.holds(), 0u);
  EXPECT_GT(rig().stats().evictions, 0u);
}

TEST_F(SystemCalls, ReadFromFilesIntoWhatIsAwayAndWhatIsNotOurs) {
  const UniqueFd file = temporary_file();
  const std::vector<std::byte> sent = pattern(kLargest, 2);
  std::byte* at = rig().filled(kLargest, 1);
  for (const auto& [name, read] : file_reads()) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(name) + " of " + std::to_string(bytes) + " bytes");
      ASSERT_EQ(ftruncate(file.get(), 0), 0);
      ASSERT_EQ(::pwrite(file.get(), sent.data(), bytes, 0), static_cast<ssize_t>(bytes));
      rig().fill(at, kLargest, 1);
      rig().push_out(at);
      lseek(file.get(), 0, SEEK_SET);
      ASSERT_EQ(read(file.get(), at, bytes), static_cast<ssize_t>(bytes));
      expect_received(at, bytes, sent, 1);
      std::vector<std::byte> plain(kLargest);
      lseek(file.get(), 0, SEEK_SET);
      ASSERT_EQ(read(file.get(), plain.data(), bytes), static_cast<ssize_t>(bytes));
      EXPECT_EQ(std::memcmp(plain.data(), sent.data(), bytes), 0);
    }
  }
  EXPECT_GT(rig().stats().evictions, 0u);
}

TEST_F(SystemCalls, FailuresAreThoseOfThePlainCall) {
  std::byte* at = away(1);
  std::vector<std::byte> plain(kLargest);
  const Ends ends(SOCK_STREAM | SOCK_NONBLOCK);
  for (std::byte* buffer : {at, plain.data()}) {
    errno = 0;
    EXPECT_EQ(libc().recv(ends.here.get(), buffer, kShare, 0), -1);
    EXPECT_EQ(errno, EAGAIN);
    errno = 0;
    EXPECT_EQ(libc().read(ends.here.get(), buffer, kShare), -1);
    EXPECT_EQ(errno, EAGAIN);
    errno = 0;
    EXPECT_EQ(libc().write(-1, buffer, kShare), -1);
    EXPECT_EQ(errno, EBADF);
    errno = 0;
    EXPECT_EQ(libc().pread(ends.here.get(), buffer, kShare, 0), -1);
    EXPECT_EQ(errno, ESPIPE);
    errno = 0;
    EXPECT_EQ(libc().send(STDIN_FILENO, buffer, 0, 0), -1);
    EXPECT_EQ(errno, ENOTSOCK);
  }
  EXPECT_TRUE(rig().holds(at, kLargest, 1));
}

TEST_F(SystemCalls, WhatCannotBeBroughtInIsAnErrorOfTheCall) {
  std::byte* at = away(1);
  const UniqueFd file = temporary_file();
  memory_.refuse(Error{Code::no_memory, "refused by a test"});
  EXPECT_EQ(libc().write(file.get(), at, kShare), -1);
  EXPECT_EQ(errno, ENOMEM);
  memory_.refuse(Error{Code::io, "refused by a test"});
  EXPECT_EQ(libc().write(file.get(), at, kShare), -1);
  EXPECT_EQ(errno, EIO);
  FILE* stream = fdopen(dup(file.get()), "wb");
  EXPECT_EQ(libc().fwrite(at, 1, kShare, stream), 0u);
  std::fclose(stream);
  EXPECT_EQ(libc().write(file.get(), "of others", 9), 9);
  memory_.refuse(std::nullopt);
  EXPECT_EQ(libc().write(file.get(), at, kShare), static_cast<ssize_t>(kShare));
}

TEST_F(SystemCalls, MessagesGoInOnePieceAndComeWithTheirSender) {
  std::byte* at = away(1);
  std::byte* into = away(2);
  const Ends ends(SOCK_SEQPACKET);
  ASSERT_EQ(libc().sendto(ends.here.get(), at, 100000, 0, nullptr, 0), 100000);
  sockaddr_storage from{};
  socklen_t bytes = sizeof from;
  ASSERT_EQ(libc().recvfrom(ends.there.get(), into, kLargest, 0, reinterpret_cast<sockaddr*>(&from),
                            &bytes),
            100000);
  expect_received(into, 100000, pattern(kLargest, 1), 2);
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers have no other argument
std::atomic<int> g_wakeup{-1}, g_woken{0}, g_failed{0};

// As Python's own handler does for set_wakeup_fd.
void wake_up(int) {
  const int saved = errno;
  const char byte = 1;
  if (libc().write(g_wakeup.load(), &byte, 1) == 1)
    ++g_woken;
  else
    ++g_failed;
  errno = saved;
}

TEST_F(SystemCalls, OfManyThreadsWhileSignalsArrive) {
  constexpr int kPairs = 2;
  constexpr int kRounds = kSanitizer ? 20 : 100;
  const Ends wakeup(SOCK_STREAM | SOCK_NONBLOCK);
  g_wakeup.store(wakeup.here.get());
  struct sigaction action {
  }, before{};
  action.sa_handler = &wake_up;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);

  std::array<std::byte*, 2 * kPairs> buffers{};
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = rig().filled(kLargest, i);
  std::array<std::unique_ptr<Ends>, kPairs> sockets;
  for (auto& ends : sockets) ends = std::make_unique<Ends>(SOCK_STREAM);
  std::atomic<int> working{2 * kPairs};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  const auto start = [&](auto body) {
    threads.emplace_back([&, body] {
      body();
      --working;
      while (!over.load()) std::this_thread::yield();  // until nobody signals it any more
    });
  };
  for (size_t pair = 0; pair < kPairs; ++pair) {
    start([&, pair] {
      for (int round = 0; round < kRounds; ++round) {
        const Bytes bytes = sizes_[static_cast<size_t>(round) % sizes_.size()];
        const int fd = sockets[pair]->here.get();
        const std::byte* from = buffers[2 * pair];
        ASSERT_TRUE(moved_all(bytes, [&](Bytes done) {
          return round % 2 == 0 ? libc().write(fd, from + done, bytes - done)
                                : libc().send(fd, from + done, bytes - done, 0);
        }));
        char answer = 0;
        ASSERT_TRUE(moved_all(1, [&](Bytes) { return libc().read(fd, &answer, 1); }));
      }
    });
    start([&, pair] {
      for (int round = 0; round < kRounds; ++round) {
        const Bytes bytes = sizes_[static_cast<size_t>(round) % sizes_.size()];
        const int fd = sockets[pair]->there.get();
        std::byte* into = buffers[2 * pair + 1];
        rig().fill(into, kLargest, 1000 + static_cast<uint64_t>(round));
        ASSERT_TRUE(moved_all(bytes, [&](Bytes done) {
          return round % 2 == 0 ? libc().read(fd, into + done, bytes - done)
                                : libc().recv(fd, into + done, bytes - done, MSG_WAITALL);
        }));
        expect_received(into, bytes, pattern(kLargest, 2 * pair),
                        1000 + static_cast<uint64_t>(round));
        const char answer = 1;
        ASSERT_TRUE(moved_all(1, [&](Bytes) { return libc().write(fd, &answer, 1); }));
      }
    });
  }
  std::array<char, 256> drained{};
  int received = 0;
  while (working.load() > 0) {
    for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGUSR1);
    if (const ssize_t got = ::read(wakeup.there.get(), drained.data(), drained.size()); got > 0)
      received += static_cast<int>(got);
    std::byte* other = rig().filled(1_MiB, 5);  // so that buffers leave
    rig().free(other);
  }
  over.store(true);
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  for (ssize_t got = 0; (got = ::read(wakeup.there.get(), drained.data(), drained.size())) > 0;)
    received += static_cast<int>(got);
  EXPECT_EQ(received, g_woken.load());
  EXPECT_GT(g_woken.load(), 0);
  EXPECT_GT(rig().stats().evictions, 0u);
  for (size_t pair = 0; pair < kPairs; ++pair)
    EXPECT_TRUE(rig().holds(buffers[2 * pair], kLargest, 2 * pair));
}

TEST_F(SystemCalls, OfALibraryThatIsLoadedLaterWhileOthersMoveData) {
  std::byte* at = rig().filled(kLargest, 1);
  const std::byte* others = rig().filled(kLargest, 2);
  std::atomic<bool> done{false};
  std::thread other([&] {
    const UniqueFd file = temporary_file();
    while (!done.load()) {
      ASSERT_EQ(libc().pwrite(file.get(), others, kLargest, 0), static_cast<ssize_t>(kLargest));
      notice_new_libraries();
    }
  });
  const UniqueFd file = temporary_file();
  for (int i = 0; i < 10; ++i) {
    void* library = libc().dlopen(IMPORTERS "/liblate_calls.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const Calls& late = *reinterpret_cast<GetCalls>(libc().dlsym(library, "calls_of_library"))();
    rig().push_out(at);
    EXPECT_EQ(late.pwrite(file.get(), at, kLargest, 0), static_cast<ssize_t>(kLargest)) << i;
    dlclose(library);
  }
  done.store(true);
  other.join();
  EXPECT_TRUE(content_of(file.get(), kLargest) == pattern(kLargest, 1));
}

}  // namespace
}  // namespace bottomless
