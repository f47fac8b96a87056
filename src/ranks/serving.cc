// Answering others, and taking what they send. A receiver never waits for anything but its peer, so that a send always
// comes to its end; whatever may take time is done by the server of that peer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ranks/exchange.h"

namespace bottomless {
namespace {

struct Buffer {
  explicit Buffer(Bytes size) : bytes(size) {}
  std::vector<std::byte> bytes;
  std::span<std::byte> all() { return bytes; }
};

Format format_of(const Message& message) { return static_cast<Format>(message.format >> 8); }
Element element_of(const Message& message) { return static_cast<Element>(message.format & 0xFF); }

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

void Exchange::offer(Key key, uint64_t version, const Offered& offered) {
  MutexLock lock(mutex_);
  Offer& offer = offers_[key];
  offer.what = offered;
  offer.version = version;
  offer.given = 0;
  changed_.notify_all();
}

void Exchange::withdraw(Key key) {
  {
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = offers_.find(key);
      if (found == offers_.end()) break;
      if (found->second.readers == 0) {
        offers_.erase(found);
        break;
      }
      changed_.wait(mutex_);
    }
  }
  pieces_.forget(key);
}

Bytes Exchange::given(Key key) const {
  MutexLock lock(mutex_);
  const auto found = offers_.find(key);
  return found == offers_.end() ? 0 : found->second.given;
}

Result<void> Exchange::deliver(int to, const Message& header, std::span<const std::byte> payload) {
  Peer& peer = *peers_[static_cast<size_t>(to)];
  MutexLock lock(peer.sending);
  Message message = header;
  if (header.kind != MessageKind::pull) message.bytes = payload.size();
  Result<void> sent = transport_.send(to, std::as_bytes(std::span(&message, 1)));
  if (sent.ok() && !payload.empty()) sent = transport_.send(to, payload);
  return sent;
}

void Exchange::receive_from(int from) {
  Buffer bounce(encoded_bytes(options_.piece_bytes, Element::bfloat16));
  for (;;) {
    Message message;
    Result<void> received =
        transport_.receive(from, std::as_writable_bytes(std::span(&message, 1)));
    if (received.ok() && message.kind == MessageKind::farewell) {
      {
        MutexLock lock(mutex_);
        peers_[static_cast<size_t>(from)]->left = true;
      }
      give_up_on(from, {Code::io, "has left"});
      return;
    }
    if (received.ok()) received = take(from, message, bounce.all());
    if (!received.ok()) {
      give_up_on(from,
                 {Code::io, "has ended or cannot be reached (" + received.error().message + ')'});
      return;
    }
  }
}

Result<void> Exchange::take(int from, const Message& message, std::span<std::byte> bounce) {
  switch (message.kind) {
    case MessageKind::notice:
      options_.noticed(from, {message.key, message.version, message.offset});
      nudge();
      return {};
    case MessageKind::pull:
    case MessageKind::ask_status: {
      MutexLock lock(mutex_);
      Message asked = message;
      asked.incoming = 1;
      peers_[static_cast<size_t>(from)]->asked.push_back(asked);
      changed_.notify_all();
      return {};
    }
    case MessageKind::hurry: {
      MutexLock lock(mutex_);
      for (Message& asked : peers_[static_cast<size_t>(from)]->asked) {
        if (asked.incoming != 0 && asked.id == message.id) asked.urgent = 1;
      }
      return {};
    }
    case MessageKind::data:
      return take_data(from, message, bounce);
    case MessageKind::failed:
    case MessageKind::status: {
      std::string text(message.bytes, ' ');
      if (Result<void> received =
              transport_.receive(from, std::as_writable_bytes(std::span(text.data(), text.size())));
          !received.ok()) {
        return received;
      }
      if (message.kind == MessageKind::failed) {
        finish(message.id, Error{Code::io, "rank " + std::to_string(from) + ": " + text});
      } else {
        MutexLock lock(mutex_);
        statuses_[message.id] = std::move(text);
        changed_.notify_all();
      }
      return {};
    }
    case MessageKind::farewell:
      break;
  }
  return Error{Code::io, "it speaks another language: do all ranks run the same version?"};
}

Result<void> Exchange::take_data(int from, const Message& message, std::span<std::byte> bounce) {
  const Bytes plain = message.version;
  std::span<std::byte> into;  // empty: nobody wants it any more
  Format format = Format::plain;
  Element element = Element::bytes;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(message.id);
    if (found != pending_.end()) {
      const Pull& pull = found->second.pull;
      if (message.offset + plain > pull.into.size())
        return Error{Code::io, "it sent more than was asked for"};
      into = pull.into.subspan(message.offset, plain);
      format = pull.format;
      element = pull.element;
      found->second.arriving = true;
      found->second.since = std::chrono::steady_clock::now();
    }
  }
  const bool direct = !into.empty() && format == Format::plain;
  if (!direct && message.bytes > bounce.size())
    return Error{Code::io, "it sent more than was asked for"};
  Result<void> received = transport_.receive(from, direct ? into : bounce.first(message.bytes));
  if (received.ok() && !into.empty() && !direct) decode(element, bounce.first(message.bytes), into);
  bool complete = false;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(message.id);
    if (found != pending_.end()) {
      Pending& pending = found->second;
      pending.arriving = false;
      pending.since = std::chrono::steady_clock::now();
      if (received.ok()) pending.arrived += plain;
      complete = pending.arrived >= pending.pull.into.size();
    }
    if (received.ok()) {
      stats_.received_bytes += message.bytes;
      stats_.received_by_role[static_cast<uint8_t>(message.key >> 56)] += message.bytes;
    }
    changed_.notify_all();
  }
  if (complete) finish(message.id, {});
  return received;
}

bool Exchange::can_answer(const Message& message) const {
  if (message.kind != MessageKind::pull || message.incoming == 0) return true;
  const auto found = offers_.find(message.key);
  return found != offers_.end() && found->second.version >= message.version;
}

// What can be answered or sent, the urgent first.
std::optional<Message> Exchange::next_for(Peer& peer) {
  auto best = peer.asked.end();
  for (auto each = peer.asked.begin(); each != peer.asked.end(); ++each) {
    if (!can_answer(*each)) continue;
    if (best == peer.asked.end() || (each->urgent != 0 && best->urgent == 0)) best = each;
    if (best->urgent != 0) break;
  }
  if (best == peer.asked.end()) return std::nullopt;
  const Message next = *best;
  peer.asked.erase(best);
  return next;
}

void Exchange::serve(int to) {
  Buffer encoded(encoded_bytes(options_.piece_bytes, Element::bfloat16));
  Peer& peer = *peers_[static_cast<size_t>(to)];
  for (;;) {
    std::optional<Message> next;
    {
      MutexLock lock(mutex_);
      while (!closing_ && !peer.gone && !(next = next_for(peer))) changed_.wait(mutex_);
      if (!next) return;
    }
    Result<void> done =
        next->incoming != 0 ? answer(to, *next, encoded.all()) : deliver(to, *next, {});
    if (!done.ok()) {
      give_up_on(to, {Code::io, "has ended or cannot be reached (" + done.error().message + ')'});
      return;
    }
  }
}

Result<void> Exchange::answer(int to, const Message& message, std::span<std::byte> encoded) {
  if (message.kind == MessageKind::ask_status) {
    return deliver(to, {.kind = MessageKind::status, .id = message.id}, as_bytes(options_.doing()));
  }
  if (message.kind != MessageKind::pull) return {};
  Offered offered;
  {
    MutexLock lock(mutex_);
    const auto found = offers_.find(message.key);
    if (found == offers_.end() || found->second.version < message.version) {
      peers_[static_cast<size_t>(to)]->asked.push_back(message);  // it was withdrawn just now
      return {};
    }
    ++found->second.readers;
    offered = found->second.what;
  }
  Result<void> sent = send_pieces(to, message, offered, encoded);
  MutexLock lock(mutex_);
  Offer& offer = offers_.at(message.key);
  --offer.readers;
  if (sent.ok()) offer.given += message.bytes;
  changed_.notify_all();
  return sent;
}

Result<void> Exchange::send_pieces(int to, const Message& message, const Offered& offered,
                                   std::span<std::byte> encoded) {
  const auto refuse = [&](const Error& why) -> Result<void> {
    if (to == rank()) {
      finish(message.id, why);
      return {};
    }
    return deliver(to, {.kind = MessageKind::failed, .id = message.id}, as_bytes(why.message));
  };
  if (message.offset < offered.first ||
      message.offset + message.bytes > offered.first + offered.bytes) {
    return refuse({Code::invalid_argument, "asked for a part that it does not have"});
  }
  std::span<std::byte> own_target;
  if (to == rank()) {
    MutexLock lock(mutex_);
    const auto found = pending_.find(message.id);
    if (found == pending_.end()) return {};
    own_target = found->second.pull.into;
  }
  const Bytes begin = message.offset - offered.first;
  for (Bytes done = 0; done < message.bytes;) {
    // Pieces begin at multiples of their size, so that all who ask share them.
    const Bytes at = begin + done;
    const Bytes piece_at = at / options_.piece_bytes * options_.piece_bytes;
    const Bytes piece_bytes = std::min(options_.piece_bytes, offered.bytes - piece_at);
    const Bytes part = std::min(piece_at + piece_bytes - at, message.bytes - done);
    std::optional<PieceCache::Piece> piece;
    std::span<const std::byte> plain(offered.address + at, part);
    if (offered.engine != nullptr) {
      uint64_t version = 0;
      {
        MutexLock lock(mutex_);
        version = offers_.at(message.key).version;
      }
      Result<PieceCache::Piece> got = pieces_.get({message.key, version, piece_at}, *offered.engine,
                                                  offered.address + piece_at, piece_bytes);
      if (!got.ok()) return refuse(got.error());
      piece.emplace(std::move(got).value());
      plain = piece->bytes().subspan(at - piece_at, part);
    }
    const bool narrow = format_of(message) == Format::eight_bits;
    std::span<const std::byte> payload = plain;
    if (narrow) {
      payload = encoded.first(encoded_bytes(part, element_of(message)));
      encode(element_of(message), plain, encoded.first(payload.size()));
    }
    if (to == rank()) {
      if (narrow) {
        decode(element_of(message), payload, own_target.subspan(done, part));
      } else {
        std::memcpy(own_target.data() + done, plain.data(), part);
      }
    } else {
      const Message header{.kind = MessageKind::data,
                           .id = message.id,
                           .key = message.key,
                           .version = part,
                           .offset = done};
      if (Result<void> sent = deliver(to, header, payload); !sent.ok()) return sent;
      MutexLock lock(mutex_);
      stats_.sent_bytes += payload.size();
    }
    done += part;
  }
  if (to == rank()) finish(message.id, {});
  return {};
}

}  // namespace bottomless
