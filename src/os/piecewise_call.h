// A call that moves data to or from a list of buffers, such as readv(), made piece by piece: each
// piece is held in memory only while the call works on it.
// Thread-safety: a function without state.
#pragma once
#include <bottomless/bytes.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <vector>

namespace bottomless {

enum class Rest {
  leave,    // a short result is the answer: a read from a pipe or a socket
  proceed,  // the caller expects all of it: files, and writes
};

// `call` gets the next piece, at most `most` bytes of `buffers`, and how many bytes went before; it
// returns what it moved, or -1 with errno, which is kept. `hold` gets the piece first; what it
// returns lives until the call has ended, and is false when the piece cannot be had. A piece is
// empty only if the buffers are. Returns what was moved in all, or -1 when the first piece fails.
template <class Hold, class Call>
ssize_t move_in_pieces(std::span<const iovec> buffers, Bytes most, Rest rest, Hold hold,
                       Call call) {
  Bytes total = 0;
  for (const iovec& buffer : buffers) total += buffer.iov_len;
  Bytes done = 0;
  do {
    std::vector<iovec> piece;
    Bytes wanted = 0;
    Bytes skip = done;
    for (const iovec& buffer : buffers) {
      const Bytes passed = std::min<Bytes>(skip, buffer.iov_len);
      skip -= passed;
      const Bytes bytes = std::min<Bytes>(most - wanted, buffer.iov_len - passed);
      wanted += bytes;
      if (bytes > 0) piece.push_back({static_cast<std::byte*>(buffer.iov_base) + passed, bytes});
    }
    ssize_t moved = -1;
    int error = 0;
    {
      const auto held = hold(std::span(piece));
      if (held) moved = call(std::span(piece), done);
      error = errno;
    }
    errno = error;  // giving the piece up may have changed it
    if (moved < 0) return done > 0 ? static_cast<ssize_t>(done) : -1;
    done += static_cast<Bytes>(moved);
    if (static_cast<Bytes>(moved) < wanted || rest == Rest::leave) break;
  } while (done < total);
  return static_cast<ssize_t>(done);
}

}  // namespace bottomless
