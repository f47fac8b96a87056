// Answering others, and taking what they send. A receiver never waits for anything but its peer, so that a send always
// comes to its end. A sender never waits for anything but the network: what this rank asks and what it is doing is said
// even while the server of that peer, which does what may take time, waits for a disk, or itself for other ranks.
#include <algorithm>
#include <cstring>
#include <new>
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

// As much of it as is said.
std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min<size_t>(text.size(), kMostWords)));
}

Error asks_too_much() { return {Code::io, "it asks for more at once than any rank does"}; }
Error too_much() { return {Code::io, "it sends more at once than any rank does"}; }

// Why a pull is refused that asks for this of what is offered.
std::optional<Error> refusal(const Message& message, const Offered& offered) {
  // No sum of what another rank says: it may wrap.
  const Bytes first = message.offset - offered.first;
  if (message.offset < offered.first || message.bytes > offered.bytes ||
      first > offered.bytes - message.bytes) {
    return Error{Code::invalid_argument, "asked for a part that it does not have"};
  }
  if (message.format >> 8 == static_cast<uint32_t>(Format::plain)) return std::nullopt;
  if (format_of(message) != Format::eight_bits || message.format >> 16 != 0 ||
      element_of(message) == Element::bytes || element_of(message) > Element::float16) {
    return Error{Code::invalid_argument, "asked for a format that is not known"};
  }
  const Bytes element = element_bytes(element_of(message));
  if (first % element != 0 || message.bytes % element != 0)
    return Error{Code::invalid_argument, "asked for parts of numbers"};
  return std::nullopt;
}

Error unreachable(const Error& why) {
  return {Code::io, "has ended or cannot be reached (" + why.message + ')'};
}

}  // namespace

void Exchange::offer(Key key, uint64_t version, const Offered& offered) {
  MutexLock lock(mutex_);
  Offer& offer = offers_[key];
  offer.what = offered;
  offer.version = version;
  offer.withdrawn = false;
  offer.given = 0;
  for (const auto& peer : peers_) {
    if (!peer->asked.empty()) peer->to_answer.notify_one();
  }
}

void Exchange::withdraw(Key key) {
  {
    MutexLock lock(mutex_);
    auto found = offers_.find(key);
    if (found != offers_.end()) found->second.withdrawn = true;
    while (found != offers_.end() && found->second.readers > 0) {
      changed_.wait(mutex_);
      found = offers_.find(key);
    }
    if (found != offers_.end() && found->second.withdrawn) offers_.erase(found);
  }
  pieces_.forget(key);
}

void Exchange::refuse_pulls(Key key) {
  withdraw(key);
  constexpr uint64_t kEveryVersion = ~uint64_t{0};
  offer(key, kEveryVersion, {});  // of which there is nothing
}

Bytes Exchange::given(Key key) const {
  MutexLock lock(mutex_);
  const auto found = offers_.find(key);
  return found == offers_.end() ? 0 : found->second.given;
}

Result<void> Exchange::deliver(int to, const Message& header, std::span<const std::byte> payload) {
  Peer& peer = this->peer(to);
  MutexLock sending(peer.sending);
  {
    MutexLock lock(mutex_);
    const bool shutdown = header.kind == MessageKind::shutdown;
    if (peer.shut_down || (peer.gone && !shutdown))
      return peer.gone ? *peer.gone : Error{Code::io, "this rank has left the others"};
    peer.shut_down = shutdown;
    peer.sending_since = clock_.now();
  }
  Message message = header;
  if (header.kind != MessageKind::pull) message.bytes = payload.size();
  Result<void> sent = transport_.send(to, std::as_bytes(std::span(&message, 1)));
  if (sent.ok() && !payload.empty()) sent = transport_.send(to, payload);
  MutexLock lock(mutex_);
  peer.sending_since.reset();
  return sent;
}

void Exchange::receive_from(int from) {
  Buffer bounce(encoded_bytes(options_.piece_bytes, Element::bfloat16));
  for (;;) {
    Message message;
    Result<void> received =
        transport_.receive(from, std::as_writable_bytes(std::span(&message, 1)));
    if (received.ok() && message.kind == MessageKind::shutdown) {
      {
        MutexLock lock(mutex_);
        peer(from).left = true;
      }
      give_up_on(from, {Code::io, "has left"});
      return;
    }
    if (received.ok()) received = take(from, message, bounce.all());
    if (!received.ok()) {
      give_up_on(from, unreachable(received.error()));
      return;
    }
  }
}

Result<void> Exchange::take(int from, const Message& message, std::span<std::byte> bounce) {
  switch (message.kind) {
    case MessageKind::notice:
      options_.on_notice(from, {message.key, message.version, message.offset});
      nudge();
      return {};
    case MessageKind::pull: {
      MutexLock lock(mutex_);
      if (peer(from).asked.size() >= kMostAsked) return asks_too_much();
      peer(from).asked.push_back(message);
      peer(from).to_answer.notify_one();
      return {};
    }
    case MessageKind::ask_status: {
      MutexLock lock(mutex_);
      if (peer(from).outbox.size() >= 2 * kMostAsked) return asks_too_much();
      peer(from).outbox.push_front({.kind = MessageKind::status, .id = message.id});
      peer(from).to_send.notify_one();
      return {};
    }
    case MessageKind::raise_priority: {
      MutexLock lock(mutex_);
      for (Message& asked : peer(from).asked) {
        if (asked.id == message.id) asked.demanded = 1;
      }
      return {};
    }
    case MessageKind::data:
      return take_data(from, message, bounce);
    case MessageKind::failed:
    case MessageKind::status: {
      if (message.bytes > kMostWords) return too_much();
      std::string text(message.bytes, ' ');
      if (!text.empty()) {
        Result<void> received =
            transport_.receive(from, std::as_writable_bytes(std::span(text.data(), text.size())));
        if (!received.ok()) return received;
      }
      if (message.kind == MessageKind::failed) {
        fail(message.id, from, {Code::io, text});
      } else {
        MutexLock lock(mutex_);
        const auto found = statuses_.find(message.id);
        if (found != statuses_.end()) found->second = std::move(text);
        changed_.notify_all();
      }
      return {};
    }
    case MessageKind::shutdown:
      break;
  }
  return Error{Code::io, "protocol mismatch: do all ranks run the same version?"};
}

// Nothing: nobody wants it any more. Otherwise the pull stays until end_arrival().
Result<std::optional<Exchange::Arrival>> Exchange::begin_arrival(int from, const Message& message) {
  MutexLock lock(mutex_);
  const auto found = pending_.find(message.id);
  if (found == pending_.end()) return std::optional<Arrival>();
  Pending& pending = found->second;
  const Pull& pull = pending.pull;
  // Pieces come in order, none is left out, and each is as long as the format makes it.
  const Bytes plain = message.version;
  const bool narrow = pull.format == Format::eight_bits;
  const bool fits = message.offset == pending.arrived &&
                    plain <= pull.into.size() - pending.arrived &&
                    (!narrow || plain % element_bytes(pull.element) == 0);
  if (from != pull.from || !fits ||
      message.bytes != (narrow ? encoded_bytes(plain, pull.element) : plain))
    return Error{Code::io, "it sent something else than was asked for"};
  pending.arriving = true;
  pending.since = clock_.now();
  return std::optional<Arrival>({.into = pending.pull.into.subspan(message.offset, plain),
                                 .format = pending.pull.format,
                                 .element = pending.pull.element});
}

void Exchange::end_arrival(uint64_t id, Bytes bytes, const Result<void>& received) {
  std::optional<Result<void>> outcome;
  {
    MutexLock lock(mutex_);
    Pending& pending = pending_.at(id);
    pending.arriving = false;
    pending.since = clock_.now();
    if (received.ok()) pending.arrived += bytes;
    if (pending.failure) {
      outcome = std::move(*pending.failure);
    } else if (received.ok() && pending.arrived >= pending.pull.into.size()) {
      outcome = Result<void>();
    }
  }
  if (outcome) finish(id, std::move(*outcome));
}

Result<void> Exchange::take_data(int from, const Message& message, std::span<std::byte> bounce) {
  const Bytes plain = message.version;
  Result<std::optional<Arrival>> begun = begin_arrival(from, message);
  if (!begun.ok()) return std::move(begun).error();
  const std::optional<Arrival>& arrival = begun.value();
  const bool direct = arrival && arrival->format == Format::plain;
  std::span<std::byte> into = direct ? arrival->into : bounce;
  // It has been given up, or comes in larger pieces than are made here: rare, so no memory is kept for it.
  std::unique_ptr<std::byte[]> room;
  Result<void> received;
  if (into.size() < message.bytes) {
    if (message.bytes <= kMostData) room.reset(new (std::nothrow) std::byte[message.bytes]);
    if (room == nullptr) received = too_much();
    into = {room.get(), room == nullptr ? 0 : message.bytes};
  }
  if (received.ok()) into = into.first(message.bytes);
  if (received.ok() && !into.empty()) received = transport_.receive(from, into);
  if (received.ok()) {
    if (arrival && !direct) decode(arrival->element, into, arrival->into);
    MutexLock lock(mutex_);
    const auto role = static_cast<uint8_t>(message.key >> 56);
    stats_.received_bytes += message.bytes;
    stats_.received_by_role[role] += message.bytes;
    if (!node_.has(from)) {
      stats_.received_across_bytes += message.bytes;
      stats_.received_across_by_role[role] += message.bytes;
    }
  }
  if (arrival) end_arrival(message.id, plain, received);
  return received;
}

bool Exchange::can_answer(const Message& message) const {
  const auto found = offers_.find(message.key);
  return found != offers_.end() && !found->second.withdrawn &&
         found->second.version >= message.version;
}

// What can be answered, demands first.
std::optional<Message> Exchange::next_for(Peer& peer) {
  auto best = peer.asked.end();
  for (auto each = peer.asked.begin(); each != peer.asked.end(); ++each) {
    if (!can_answer(*each)) continue;
    if (best == peer.asked.end() || (each->demanded != 0 && best->demanded == 0)) best = each;
    if (best->demanded != 0) break;
  }
  if (best == peer.asked.end()) return std::nullopt;
  const Message next = *best;
  peer.asked.erase(best);
  return next;
}

void Exchange::send_loop(int to) {
  Peer& peer = this->peer(to);
  for (;;) {
    Message next;
    {
      MutexLock lock(mutex_);
      while (peer.outbox.empty() && !peer.gone && !served_) peer.to_send.wait(mutex_);
      if (peer.gone || served_) break;
      next = peer.outbox.front();
      peer.outbox.pop_front();
    }
    const std::string status = next.kind == MessageKind::status ? options_.phase() : std::string();
    if (Result<void> said = deliver(to, next, as_bytes(status)); !said.ok()) {
      give_up_on(to, unreachable(said.error()));
      break;
    }
  }
  bool there = false;
  {
    MutexLock lock(mutex_);
    there = (!peer.gone || peer.left) && !aborted_;
  }
  if (there) (void)deliver(to, {.kind = MessageKind::shutdown}, {});  // the last it hears
  MutexLock lock(mutex_);
  peer.sender_ended = true;
  changed_.notify_all();
}

void Exchange::serve(int to) {
  options_.serving();
  Buffer encoded(encoded_bytes(options_.piece_bytes, Element::bfloat16));
  Peer& peer = this->peer(to);
  for (;;) {
    std::optional<Message> next;
    {
      MutexLock lock(mutex_);
      while (!closing_ && !peer.gone && !(next = next_for(peer))) peer.to_answer.wait(mutex_);
      if (!next) return;
    }
    if (Result<void> done = answer(to, *next, encoded.all()); !done.ok()) {
      give_up_on(to, unreachable(done.error()));
      return;
    }
  }
}

Result<void> Exchange::answer(int to, const Message& message, std::span<std::byte> encoded) {
  Offered offered;
  uint64_t version = 0;
  {
    MutexLock lock(mutex_);
    if (!can_answer(message)) {
      peer(to).asked.push_back(message);  // it was withdrawn just now
      return {};
    }
    Offer& offer = offers_.at(message.key);
    ++offer.readers;
    offered = offer.what;
    version = offer.version;
  }
  Result<bool> given = send_pieces(to, message, offered, version, encoded);
  MutexLock lock(mutex_);
  Offer& offer = offers_.at(message.key);  // readers keep it
  --offer.readers;
  if (given.ok() && given.value() && offer.version == version) offer.given += message.bytes;
  changed_.notify_all();
  if (!given.ok()) return std::move(given).error();
  return {};
}

Result<void> Exchange::refuse(int to, uint64_t id, const Error& why) {
  if (to != rank())
    return deliver(to, {.kind = MessageKind::failed, .id = id}, as_bytes(why.message));
  fail(id, to, why);
  return {};
}

// True when all of it has been given.
Result<bool> Exchange::send_pieces(int to, const Message& message, const Offered& offered,
                                   uint64_t version, std::span<std::byte> encoded) {
  const auto refused = [&](const Error& why) -> Result<bool> {
    if (Result<void> told = refuse(to, message.id, why); !told.ok()) return std::move(told).error();
    return false;
  };
  if (const std::optional<Error> why = refusal(message, offered)) return refused(*why);
  const bool narrow = format_of(message) == Format::eight_bits;
  const Bytes begin = message.offset - offered.first;
  Bytes done = 0;
  do {  // once at least: who asks for nothing is told that it is there
    // Pieces begin at multiples of their size, so that all who ask share them.
    const Bytes at = begin + done;
    const Bytes piece_at = at / options_.piece_bytes * options_.piece_bytes;
    const Bytes piece_bytes = std::min(options_.piece_bytes, offered.bytes - piece_at);
    const Bytes part = std::min(piece_at + piece_bytes - at, message.bytes - done);
    std::optional<PieceCache::Piece> piece;
    std::span<const std::byte> plain(offered.address + at, part);
    if (offered.engine != nullptr && part > 0) {
      Result<PieceCache::Piece> got =
          pieces_.get({message.key, version, piece_at}, *offered.engine, offered.address + piece_at,
                      piece_bytes, offered.askers);
      if (!got.ok()) return refused(got.error());
      piece.emplace(std::move(got).value());
      plain = piece->bytes().subspan(at - piece_at, part);
    }
    std::span<const std::byte> payload = plain;
    if (narrow) {
      payload = encoded.first(encoded_bytes(part, element_of(message)));
      encode(element_of(message), plain, encoded.first(payload.size()));
    }
    const Message header{.kind = MessageKind::data,
                         .id = message.id,
                         .key = message.key,
                         .version = part,
                         .offset = done,
                         .bytes = payload.size()};
    if (to == rank()) {
      const Result<std::optional<Arrival>> begun = begin_arrival(to, header);
      if (!begun.ok() || !begun.value()) return false;
      if (narrow) {
        decode(element_of(message), payload, begun.value()->into);
      } else if (part > 0) {
        std::memcpy(begun.value()->into.data(), plain.data(), part);
      }
      end_arrival(message.id, part, {});
    } else {
      if (Result<void> sent = deliver(to, header, payload); !sent.ok())
        return std::move(sent).error();
      MutexLock lock(mutex_);
      stats_.sent_bytes += payload.size();
    }
    done += part;
  } while (done < message.bytes);
  return true;
}

}  // namespace bottomless
