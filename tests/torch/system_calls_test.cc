// Every call of libc that is redirected (src/os/system_calls.cc), on tensors that are away, at
// sizes around every boundary: a page, the smallest storage that is managed, a block, what one call
// may pin.
#include <bottomless/torch.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/random.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

constexpr Bytes kMemory = 16_MiB;
constexpr Bytes kShare = kMemory / 16;
constexpr Bytes kLargest = 3 * kShare + 1;

using List = std::vector<iovec>;

Bytes total_of(const List& list) {
  Bytes total = 0;
  for (const iovec& part : list) total += part.iov_len;
  return total;
}

// Streams hand their bytes on in any pieces they like; what calls on them give is summed up.
ssize_t all_of(const List& list, const std::function<ssize_t(char*, size_t)>& call) {
  ssize_t sum = 0;
  for (const iovec& part : list) {
    for (size_t done = 0; done < part.iov_len;) {
      const ssize_t moved = call(static_cast<char*>(part.iov_base) + done, part.iov_len - done);
      if (moved <= 0) return sum;
      done += static_cast<size_t>(moved);
      sum += moved;
    }
  }
  return sum;
}

struct Call {
  const char* name;
  ssize_t (*run)(int fd, List list);  // all of the list, from the begin of what fd is
};

msghdr message_of(List& list) {
  msghdr message{};
  message.msg_iov = list.data();
  message.msg_iovlen = list.size();
  return message;
}

int count_of(const List& list) { return static_cast<int>(list.size()); }

ssize_t once(const List& list, const std::function<ssize_t(char*, size_t)>& call) {
  ssize_t sum = 0;  // each part in one call: short is a failure
  for (const iovec& part : list) {
    if (part.iov_len == 0) continue;
    const ssize_t moved = call(static_cast<char*>(part.iov_base), part.iov_len);
    if (moved != static_cast<ssize_t>(part.iov_len)) return -1;
    sum += moved;
  }
  return sum;
}

ssize_t by_stream(int fd, const List& list, const char* mode, size_t size, bool in) {
  FILE* file = fdopen(dup(fd), mode);
  const ssize_t sum = once(list, [&](char* at, size_t bytes) {
    const size_t whole = bytes / size * size;
    const size_t members =
        in ? fread(at, size, whole / size, file) : fwrite(at, size, whole / size, file);
    const size_t rest =
        in ? fread(at + whole, 1, bytes - whole, file) : fwrite(at + whole, 1, bytes - whole, file);
    return static_cast<ssize_t>(members * size + rest);
  });
  fclose(file);
  return sum;
}

constexpr std::array kToFile = {
    Call{"write",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) { return write(fd, at, n); });
         }},
    Call{"writev", [](int fd, List list) { return writev(fd, list.data(), count_of(list)); }},
    Call{"pwrite",
         [](int fd, List list) {
           off_t at_offset = 0;
           return once(list, [&](char* at, size_t n) {
             const ssize_t moved = pwrite(fd, at, n, at_offset);
             at_offset += moved;
             return moved;
           });
         }},
    Call{"pwritev", [](int fd, List list) { return pwritev(fd, list.data(), count_of(list), 0); }},
    // What Python's os.pwritev() calls. At -1 is where the file is, which moves on.
    Call{"pwritev2",
         [](int fd, List list) { return pwritev2(fd, list.data(), count_of(list), 0, 0); }},
    Call{"pwritev2_on",
         [](int fd, List list) { return pwritev2(fd, list.data(), count_of(list), -1, 0); }},
    Call{"fwrite", [](int fd, List list) { return by_stream(fd, list, "wb", 1, false); }},
    Call{"fwrite8", [](int fd, List list) { return by_stream(fd, list, "wb", 8, false); }},
};

constexpr std::array kFromFile = {
    Call{"read",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) { return read(fd, at, n); });
         }},
    Call{"readv", [](int fd, List list) { return readv(fd, list.data(), count_of(list)); }},
    Call{"pread",
         [](int fd, List list) {
           off_t at_offset = 0;
           return once(list, [&](char* at, size_t n) {
             const ssize_t moved = pread(fd, at, n, at_offset);
             at_offset += moved;
             return moved;
           });
         }},
    Call{"preadv", [](int fd, List list) { return preadv(fd, list.data(), count_of(list), 0); }},
    Call{"preadv2",
         [](int fd, List list) { return preadv2(fd, list.data(), count_of(list), 0, 0); }},
    Call{"preadv2_on",
         [](int fd, List list) { return preadv2(fd, list.data(), count_of(list), -1, 0); }},
    Call{"fread", [](int fd, List list) { return by_stream(fd, list, "rb", 1, true); }},
    Call{"fread8", [](int fd, List list) { return by_stream(fd, list, "rb", 8, true); }},
};

constexpr std::array kToSocket = {
    Call{"write", kToFile[0].run},
    Call{"writev", kToFile[1].run},
    Call{"send",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) { return send(fd, at, n, 0); });
         }},
    Call{"sendto",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) { return sendto(fd, at, n, 0, nullptr, 0); });
         }},
    Call{"sendmsg",
         [](int fd, List list) {
           const msghdr message = message_of(list);
           return sendmsg(fd, &message, 0);
         }},
};

constexpr std::array kFromSocket = {
    Call{"read",
         [](int fd, List list) {
           return all_of(list, [&](char* at, size_t n) { return read(fd, at, n); });
         }},
    Call{"recv",
         [](int fd, List list) {
           return all_of(list, [&](char* at, size_t n) { return recv(fd, at, n, 0); });
         }},
    Call{"recv_waitall",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) { return recv(fd, at, n, MSG_WAITALL); });
         }},
    Call{"recvfrom_waitall",
         [](int fd, List list) {
           return once(list, [&](char* at, size_t n) {
             return recvfrom(fd, at, n, MSG_WAITALL, nullptr, nullptr);
           });
         }},
    Call{"recvmsg_waitall",
         [](int fd, List list) {
           msghdr message = message_of(list);
           return recvmsg(fd, &message, MSG_WAITALL);
         }},
};

class SystemCalls : public ::testing::Test {
 protected:
  SystemCalls() {
    runtime_.emplace(options());
    for (size_t i = 0; i < kLargest; ++i) pattern_.push_back(static_cast<char>(random_.next()));
    // One of each size of a boundary, so that ends of storages are met as well.
    for (const Bytes boundary : {4_KiB, 128_KiB, 256_KiB, kShare, 2 * kShare, 3 * kShare}) {
      for (const Bytes bytes : {boundary - 1, boundary, boundary + 1}) sizes_.push_back(bytes);
    }
    for (int i = 0; i < 4; ++i) sizes_.push_back(1 + random_.below(kLargest));
  }

  ~SystemCalls() override { EXPECT_GT(runtime_->stats().evictions, 0u); }

  Options options() const {
    return {.memory = kMemory, .disk = {directory_.path()}, .disk_limit = std::nullopt};
  }
  std::string file() const { return (directory_.path() / "file").string(); }

  // A tensor of that size whose content is away, and the list of buffers that it is cut into.
  List away(Bytes bytes, bool filled) {
    tensor_ = torch::empty(static_cast<int64_t>(bytes), torch::kUInt8);
    if (filled) tensor_.copy_(torch::from_blob(pattern_.data(), tensor_.sizes(), torch::kUInt8));
    std::vector<torch::Tensor> others;
    for (int i = 0; i < 4; ++i) others.push_back(torch::ones(4 << 20, torch::kUInt8));
    List list;
    char* at = static_cast<char*>(tensor_.data_ptr());
    for (Bytes left = bytes; left > 0;) {
      const Bytes part = random_.one_in(2) || list.size() > 8 ? left : random_.below(left + 1);
      list.push_back({at, part});
      at += part;
      left -= part;
    }
    return list;
  }
  std::string_view expected(Bytes bytes) const { return {pattern_.data(), bytes}; }
  std::string_view content() const {
    return {static_cast<const char*>(tensor_.data_ptr()), tensor_.nbytes()};
  }

  TemporaryDirectory directory_;
  Random random_{20261118};
  std::vector<char> pattern_;
  std::vector<Bytes> sizes_;
  std::optional<Runtime> runtime_;
  torch::Tensor tensor_;
};

TEST_F(SystemCalls, WriteToFilesAllOfWhatIsAway) {
  BOTTOMLESS_TRACE_SEED(random_);
  for (const Call& call : kToFile) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(call.name) + " of " + std::to_string(bytes) + " bytes");
      const List list = away(bytes, true);
      const int fd = open(file().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      ASSERT_EQ(call.run(fd, list), static_cast<ssize_t>(total_of(list)));
      std::string written(bytes + 1, '\0');
      ASSERT_EQ(pread(fd, written.data(), written.size(), 0), static_cast<ssize_t>(bytes));
      EXPECT_TRUE(std::string_view(written).substr(0, bytes) == expected(bytes));
      close(fd);
    }
  }
}

TEST_F(SystemCalls, ReadFromFilesIntoWhatIsAway) {
  BOTTOMLESS_TRACE_SEED(random_);
  for (const Call& call : kFromFile) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(call.name) + " of " + std::to_string(bytes) + " bytes");
      const List list = away(bytes, false);
      const int fd = open(file().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      ASSERT_EQ(write(fd, pattern_.data(), bytes), static_cast<ssize_t>(bytes));
      lseek(fd, 0, SEEK_SET);
      ASSERT_EQ(call.run(fd, list), static_cast<ssize_t>(total_of(list)));
      EXPECT_TRUE(content() == expected(bytes));
      close(fd);
    }
  }
}

TEST_F(SystemCalls, SendAllOfWhatIsAway) {
  BOTTOMLESS_TRACE_SEED(random_);
  for (const Call& call : kToSocket) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(call.name) + " of " + std::to_string(bytes) + " bytes");
      const List list = away(bytes, true);
      std::array<int, 2> ends{};
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
      std::string received(bytes + 1, '\0');
      ssize_t got = 0;
      std::thread reader([&] {
        got = all_of({{received.data(), received.size()}},
                     [&](char* at, size_t n) { return read(ends[1], at, n); });
      });
      const ssize_t sent = call.run(ends[0], list);
      close(ends[0]);
      reader.join();
      close(ends[1]);
      ASSERT_EQ(sent, static_cast<ssize_t>(total_of(list)));
      ASSERT_EQ(got, sent);
      EXPECT_TRUE(std::string_view(received).substr(0, bytes) == expected(bytes));
    }
  }
}

// The other side stays open: a call that asks for more than there is to come waits for ever.
TEST_F(SystemCalls, ReceiveIntoWhatIsAwayAndAskForNoMore) {
  BOTTOMLESS_TRACE_SEED(random_);
  for (const Call& call : kFromSocket) {
    for (const Bytes bytes : sizes_) {
      SCOPED_TRACE(std::string(call.name) + " of " + std::to_string(bytes) + " bytes");
      const List list = away(bytes, false);
      std::array<int, 2> ends{};
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
      std::thread writer([&] {
        all_of({{pattern_.data(), bytes}},
               [&](char* at, size_t n) { return write(ends[1], at, n); });
      });
      const ssize_t got = call.run(ends[0], list);
      writer.join();
      close(ends[0]);
      close(ends[1]);
      ASSERT_EQ(got, static_cast<ssize_t>(total_of(list)));
      EXPECT_TRUE(content() == expected(bytes));
    }
  }
}

TEST_F(SystemCalls, MessagesGoInOnePiece) {
  for (const int type : {SOCK_DGRAM, SOCK_SEQPACKET}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, type, 0, ends.data()), 0);
    const List list = away(128_KiB + 1, true);
    ASSERT_EQ(send(ends[0], tensor_.data_ptr(), tensor_.nbytes(), 0), 128_KiB + 1);
    away(128_KiB + 1, false);
    ASSERT_EQ(recv(ends[1], tensor_.data_ptr(), tensor_.nbytes(), 0), 128_KiB + 1);
    EXPECT_TRUE(content() == expected(128_KiB + 1));
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_F(SystemCalls, FailuresAreThoseOfThePlainCall) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  away(2 * kShare, true);
  char* at = static_cast<char*>(tensor_.data_ptr());
  errno = 0;
  EXPECT_EQ(recv(ends[0], at, kShare, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  errno = 0;
  EXPECT_EQ(read(ends[0], at, kShare), -1);
  EXPECT_EQ(errno, EAGAIN);
  errno = 0;
  EXPECT_EQ(write(-1, at, kShare), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(read(ends[0], at, 0), 0);
  close(ends[0]);
  close(ends[1]);
}

// Buffers of two limits in one call.
TEST_F(SystemCalls, BuffersOfSeveralLimits) {
  const List first = away(kShare, true);
  const torch::Tensor kept = tensor_;
  runtime_.reset();
  runtime_.emplace(options());
  away(kShare, true);
  const std::array list = {iovec{kept.data_ptr(), kShare}, iovec{tensor_.data_ptr(), kShare}};
  const int fd = open(file().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_EQ(writev(fd, list.data(), 2), static_cast<ssize_t>(2 * kShare));
  std::string written(2 * kShare, '\0');
  ASSERT_EQ(pread(fd, written.data(), written.size(), 0), static_cast<ssize_t>(2 * kShare));
  EXPECT_TRUE(std::string_view(written).substr(0, kShare) == expected(kShare));
  EXPECT_TRUE(std::string_view(written).substr(kShare) == expected(kShare));
  close(fd);
}

}  // namespace
}  // namespace bottomless
