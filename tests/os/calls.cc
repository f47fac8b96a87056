#include "os/calls.h"

#include <dlfcn.h>
#include <unistd.h>

// Each goes through the library's import table.
extern "C" const Calls* calls_of_library() {
  static const Calls calls{
      .read = [](int fd, void* at, size_t n) { return read(fd, at, n); },
      .readv = [](int fd, const iovec* list, int n) { return readv(fd, list, n); },
      .pread = [](int fd, void* at, size_t n, off_t from) { return pread(fd, at, n, from); },
      .preadv = [](int fd, const iovec* list, int n,
                   off_t from) { return preadv(fd, list, n, from); },
      .write = [](int fd, const void* at, size_t n) { return write(fd, at, n); },
      .writev = [](int fd, const iovec* list, int n) { return writev(fd, list, n); },
      .pwrite = [](int fd, const void* at, size_t n, off_t to) { return pwrite(fd, at, n, to); },
      .pwritev = [](int fd, const iovec* list, int n,
                    off_t to) { return pwritev(fd, list, n, to); },
      .recv = [](int fd, void* at, size_t n, int flags) { return recv(fd, at, n, flags); },
      .recvfrom = [](int fd, void* at, size_t n, int flags, sockaddr* from,
                     socklen_t* bytes) { return recvfrom(fd, at, n, flags, from, bytes); },
      .recvmsg = [](int fd, msghdr* message, int flags) { return recvmsg(fd, message, flags); },
      .send = [](int fd, const void* at, size_t n, int flags) { return send(fd, at, n, flags); },
      .sendto = [](int fd, const void* at, size_t n, int flags, const sockaddr* to,
                   socklen_t bytes) { return sendto(fd, at, n, flags, to, bytes); },
      .sendmsg = [](int fd, const msghdr* message,
                    int flags) { return sendmsg(fd, message, flags); },
      .fread = [](void* at, size_t size, size_t n, FILE* file) { return fread(at, size, n, file); },
      .fwrite = [](const void* at, size_t size, size_t n,
                   FILE* file) { return fwrite(at, size, n, file); },
      .dlopen = [](const char* file, int mode) { return dlopen(file, mode); },
      .dlsym = [](void* library, const char* name) { return dlsym(library, name); },
  };
  return &calls;
}
