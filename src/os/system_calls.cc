#include "os/system_calls.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "os/fault_handler.h"
#include "os/piecewise_call.h"

namespace bottomless {
namespace {

// What the redirected calls need; set before the first of them is redirected.
struct Covered {
  Covered(const SystemCallHooks& given, std::vector<Redirection> redirections)
      : hooks(given), imports(std::move(redirections)) {}
  SystemCallHooks hooks;
  Imports imports;
};
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): a redirected call has no other argument
constinit std::atomic<Covered*> g_covered{nullptr};

Covered& covered() { return *g_covered.load(std::memory_order_acquire); }
Imports& imports() { return covered().imports; }

// The redirected functions come here first, and some of them are called by signal handlers,
// whatever the interrupted thread was doing: no lock and no allocation before it is known that the
// buffer is ours.
BufferOwner* owner_of(const void* address) { return covered().hooks.owner_of(address); }

BufferOwner* owner_of(std::span<const iovec> buffers) {
  for (const iovec& buffer : buffers) {
    if (BufferOwner* owner = owner_of(buffer.iov_base)) return owner;
  }
  return nullptr;
}

// Keeps buffers in memory while the kernel works on them.
class Held {
 public:
  // False, with errno set, when they cannot be brought in.
  explicit operator bool() const { return held_; }

  Held(std::span<const iovec> buffers, Access access) {
    for (const iovec& buffer : buffers) {
      BufferOwner* owner = owner_of(buffer.iov_base);
      if (owner == nullptr || owner == last_) continue;
      last_ = owner;
      held_ = held_ && hold(*owner, buffers, access);
    }
  }

 private:
  bool hold(BufferOwner& owner, std::span<const iovec> buffers, Access access) {
    Result<std::shared_ptr<void>> kept = owner.hold(buffers, access);
    if (kept.ok()) {
      kept_.push_back(std::move(kept).value());
      return true;
    }
    std::fprintf(stderr, "bottomless: %s\n", kept.error().message.c_str());
    errno = kept.error().code == Code::no_memory ? ENOMEM : EIO;
    return false;
  }

  bool held_ = true;
  const BufferOwner* last_ = nullptr;
  std::vector<std::shared_ptr<void>> kept_;
};

// How much one call may pin: little, so that a call that waits for a peer keeps nobody from working.
Bytes share_of(const BufferOwner& owner) { return std::max<Bytes>(owner.limit() / 16, 64_KiB); }

template <class Call>
ssize_t transfer(std::span<const iovec> buffers, Access access, Rest rest, Bytes most, Call call) {
  const auto hold = [access](std::span<iovec> piece) { return Held(piece, access); };
  return move_in_pieces(buffers, most, rest, hold, call);
}

bool is_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// A message must go in one piece.
Bytes most_for_socket(int fd, const BufferOwner& owner) {
  int type = SOCK_STREAM;
  socklen_t bytes = sizeof type;
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes);
  return type == SOCK_STREAM ? share_of(owner) : SSIZE_MAX;
}

template <class Call>
ssize_t read_into(int fd, std::span<const iovec> buffers, BufferOwner& owner, Call call) {
  const Rest rest = is_file(fd) ? Rest::proceed : Rest::leave;
  return transfer(buffers, Access::write, rest, share_of(owner), call);
}

template <class Call>
ssize_t write_from(std::span<const iovec> buffers, BufferOwner& owner, Call call) {
  return transfer(buffers, Access::read, Rest::proceed, share_of(owner), call);
}

int count_of(std::span<iovec> piece) { return static_cast<int>(piece.size()); }
// -1 is where the file is, and stays it.
off64_t past(off64_t offset, Bytes done) {
  return offset == -1 ? -1 : offset + static_cast<off64_t>(done);
}
iovec one(const void* buffer, size_t bytes) { return {const_cast<void*>(buffer), bytes}; }

ssize_t our_readv(int fd, const iovec* list, int count) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::readv(fd, list, count);
  return read_into(fd, buffers, *owner, [&](std::span<iovec> piece, Bytes) {
    return ::readv(fd, piece.data(), count_of(piece));
  });
}

ssize_t our_read(int fd, void* buffer, size_t bytes) {
  if (owner_of(buffer) == nullptr) return ::read(fd, buffer, bytes);
  const iovec list = one(buffer, bytes);
  return our_readv(fd, &list, 1);
}

ssize_t our_preadv(int fd, const iovec* list, int count, off64_t offset) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::preadv64(fd, list, count, offset);
  return read_into(fd, buffers, *owner, [&](std::span<iovec> piece, Bytes done) {
    return ::preadv64(fd, piece.data(), count_of(piece), past(offset, done));
  });
}

ssize_t our_preadv2(int fd, const iovec* list, int count, off64_t offset, int flags) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::preadv64v2(fd, list, count, offset, flags);
  return read_into(fd, buffers, *owner, [&](std::span<iovec> piece, Bytes done) {
    return ::preadv64v2(fd, piece.data(), count_of(piece), past(offset, done), flags);
  });
}

ssize_t our_pread(int fd, void* buffer, size_t bytes, off64_t offset) {
  if (owner_of(buffer) == nullptr) return ::pread64(fd, buffer, bytes, offset);
  const iovec list = one(buffer, bytes);
  return our_preadv(fd, &list, 1, offset);
}

ssize_t our_writev(int fd, const iovec* list, int count) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::writev(fd, list, count);
  return write_from(buffers, *owner, [&](std::span<iovec> piece, Bytes) {
    return ::writev(fd, piece.data(), count_of(piece));
  });
}

ssize_t our_write(int fd, const void* buffer, size_t bytes) {
  if (owner_of(buffer) == nullptr) return ::write(fd, buffer, bytes);
  const iovec list = one(buffer, bytes);
  return our_writev(fd, &list, 1);
}

ssize_t our_pwritev(int fd, const iovec* list, int count, off64_t offset) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::pwritev64(fd, list, count, offset);
  return write_from(buffers, *owner, [&](std::span<iovec> piece, Bytes done) {
    return ::pwritev64(fd, piece.data(), count_of(piece), past(offset, done));
  });
}

ssize_t our_pwritev2(int fd, const iovec* list, int count, off64_t offset, int flags) {
  const std::span buffers(list, static_cast<size_t>(std::max(count, 0)));
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::pwritev64v2(fd, list, count, offset, flags);
  return write_from(buffers, *owner, [&](std::span<iovec> piece, Bytes done) {
    return ::pwritev64v2(fd, piece.data(), count_of(piece), past(offset, done), flags);
  });
}

ssize_t our_pwrite(int fd, const void* buffer, size_t bytes, off64_t offset) {
  if (owner_of(buffer) == nullptr) return ::pwrite64(fd, buffer, bytes, offset);
  const iovec list = one(buffer, bytes);
  return our_pwritev(fd, &list, 1, offset);
}

ssize_t our_recvmsg(int fd, msghdr* message, int flags) {
  const std::span buffers(message->msg_iov, message->msg_iovlen);
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::recvmsg(fd, message, flags);
  // What comes beside the data, such as descriptors, ends a message: a second call would lose it.
  const bool all =
      (flags & MSG_WAITALL) != 0 && (flags & MSG_PEEK) == 0 && message->msg_control == nullptr;
  const Rest rest = all ? Rest::proceed : Rest::leave;
  const auto call = [&](std::span<iovec> piece, Bytes) {
    msghdr part = *message;
    part.msg_iov = piece.data();
    part.msg_iovlen = piece.size();
    const ssize_t got = ::recvmsg(fd, &part, flags);
    message->msg_namelen = part.msg_namelen;
    message->msg_controllen = part.msg_controllen;
    message->msg_flags = part.msg_flags;
    return got;
  };
  return transfer(buffers, Access::write, rest, most_for_socket(fd, *owner), call);
}

ssize_t our_recvfrom(int fd, void* buffer, size_t bytes, int flags, sockaddr* from,
                     socklen_t* from_bytes) {
  if (owner_of(buffer) == nullptr) return ::recvfrom(fd, buffer, bytes, flags, from, from_bytes);
  iovec list = one(buffer, bytes);
  msghdr message{};
  message.msg_name = from;
  message.msg_namelen = from_bytes != nullptr ? *from_bytes : 0;
  message.msg_iov = &list;
  message.msg_iovlen = 1;
  const ssize_t got = our_recvmsg(fd, &message, flags);
  if (from_bytes != nullptr) *from_bytes = message.msg_namelen;
  return got;
}

ssize_t our_recv(int fd, void* buffer, size_t bytes, int flags) {
  return our_recvfrom(fd, buffer, bytes, flags, nullptr, nullptr);
}

ssize_t our_sendmsg(int fd, const msghdr* message, int flags) {
  const std::span buffers(message->msg_iov, message->msg_iovlen);
  BufferOwner* owner = owner_of(buffers);
  if (owner == nullptr) return ::sendmsg(fd, message, flags);
  const auto call = [&](std::span<iovec> piece, Bytes done) {
    msghdr part = *message;
    part.msg_iov = piece.data();
    part.msg_iovlen = piece.size();
    if (done > 0) part.msg_controllen = 0;  // went with the first piece
    return ::sendmsg(fd, &part, flags);
  };
  return transfer(buffers, Access::read, Rest::proceed, most_for_socket(fd, *owner), call);
}

ssize_t our_sendto(int fd, const void* buffer, size_t bytes, int flags, const sockaddr* to,
                   socklen_t to_bytes) {
  if (owner_of(buffer) == nullptr) return ::sendto(fd, buffer, bytes, flags, to, to_bytes);
  iovec list = one(buffer, bytes);
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to);
  message.msg_namelen = to_bytes;
  message.msg_iov = &list;
  message.msg_iovlen = 1;
  return our_sendmsg(fd, &message, flags);
}

ssize_t our_send(int fd, const void* buffer, size_t bytes, int flags) {
  return our_sendto(fd, buffer, bytes, flags, nullptr, 0);
}

// Streams: libc calls the kernel from inside, where no import can be redirected. `call` is fread or
// fwrite on bytes.
template <class Call>
size_t over_stream(BufferOwner& owner, const void* buffer, size_t size, size_t count, Access access,
                   Call call) {
  const iovec whole = one(buffer, size * count);
  const ssize_t moved = transfer(
      {&whole, 1}, access, Rest::proceed, share_of(owner), [&](std::span<iovec> piece, Bytes) {
        return static_cast<ssize_t>(call(piece[0].iov_base, piece[0].iov_len));
      });
  return moved < 0 ? 0 : static_cast<size_t>(moved) / size;
}

size_t our_fread(void* buffer, size_t size, size_t count, FILE* file) {
  BufferOwner* owner = size * count == 0 ? nullptr : owner_of(buffer);
  if (owner == nullptr) return ::fread(buffer, size, count, file);
  return over_stream(*owner, buffer, size, count, Access::write,
                     [&](void* piece, size_t bytes) { return ::fread(piece, 1, bytes, file); });
}

size_t our_fwrite(const void* buffer, size_t size, size_t count, FILE* file) {
  BufferOwner* owner = size * count == 0 ? nullptr : owner_of(buffer);
  if (owner == nullptr) return ::fwrite(buffer, size, count, file);
  return over_stream(*owner, buffer, size, count, Access::read,
                     [&](void* piece, size_t bytes) { return ::fwrite(piece, 1, bytes, file); });
}

void look_for_new_libraries() {
  if (!covered().hooks.in_forked_child()) imports().redirect();
}

// How many operators look for new libraries after one began to be loaded: it is not there yet when
// we hear of it, and this must not go on for ever.
constexpr int kLooks = 4096;

void look_later() { detail::new_libraries.store(kLooks, std::memory_order_relaxed); }

// The loader asks who calls it where it has to search for a library: the caller's own folders come
// first. A path is the same for everybody.
bool is_path(const char* file) {
  return file != nullptr && std::strchr(file, '/') != nullptr && std::strchr(file, '$') == nullptr;
}

template <class Open>
void* open_path(Open open) {
  void* library = nullptr;
  {
    const Imports::Loading loading(imports());
    library = open();
  }
  if (imports().loading()) {
    look_later();
  } else {
    look_for_new_libraries();
  }
  return library;
}

// For a name these are tail calls, so that the loader still sees who asked.
void* our_dlopen(const char* file, int mode) {
  if (is_path(file)) return open_path([=] { return ::dlopen(file, mode); });
  look_later();
  return ::dlopen(file, mode);
}

void* our_dlmopen(Lmid_t space, const char* file, int mode) {
  if (is_path(file)) return open_path([=] { return ::dlmopen(space, file, mode); });
  look_later();
  return ::dlmopen(space, file, mode);
}

// Whoever loaded a library by name is about to call it.
void* our_dlsym(void* library, const char* name) {
  notice_new_libraries();
  return ::dlsym(library, name);
}

std::vector<Redirection> redirections() {
  const auto at = [](auto* function) { return reinterpret_cast<const void*>(function); };
  return {
      {"read", at(&our_read)},
      {"readv", at(&our_readv)},
      {"pread", at(&our_pread)},
      {"pread64", at(&our_pread)},
      {"preadv", at(&our_preadv)},
      {"preadv64", at(&our_preadv)},
      {"preadv2", at(&our_preadv2)},
      {"preadv64v2", at(&our_preadv2)},
      {"write", at(&our_write)},
      {"writev", at(&our_writev)},
      {"pwrite", at(&our_pwrite)},
      {"pwrite64", at(&our_pwrite)},
      {"pwritev", at(&our_pwritev)},
      {"pwritev64", at(&our_pwritev)},
      {"pwritev2", at(&our_pwritev2)},
      {"pwritev64v2", at(&our_pwritev2)},
      {"recv", at(&our_recv)},
      {"recvfrom", at(&our_recvfrom)},
      {"recvmsg", at(&our_recvmsg)},
      {"send", at(&our_send)},
      {"sendto", at(&our_sendto)},
      {"sendmsg", at(&our_sendmsg)},
      {"fread", at(&our_fread)},
      {"fread_unlocked", at(&our_fread)},
      {"fwrite", at(&our_fwrite)},
      {"fwrite_unlocked", at(&our_fwrite)},
      {"dlopen", at(&our_dlopen)},
      {"dlmopen", at(&our_dlmopen)},
      {"dlsym", at(&our_dlsym)},
      {"sigaction", at(&FaultHandler::sigaction_of_others)},
      {"signal", at(&FaultHandler::signal_of_others)},
  };
}

}  // namespace

void cover_system_calls(const SystemCallHooks& hooks, std::span<const Redirection> others) {
  if (g_covered.load(std::memory_order_acquire) == nullptr) {
    std::vector<Redirection> all = redirections();
    all.insert(all.end(), others.begin(), others.end());
    // NOLINTNEXTLINE: imports refer to it until the very end
    g_covered.store(new Covered(hooks, std::move(all)), std::memory_order_release);
  }
  imports().redirect();
}

void detail::cover_new_libraries() {
  if (imports().loading()) return;
  new_libraries.fetch_sub(1, std::memory_order_relaxed);
  look_for_new_libraries();
}

}  // namespace bottomless
