// A rank that says what no rank says: the others name it in an error, or refuse, and go on.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "ranks/exchanges.h"
#include "ranks/message.h"
#include "ranks/rendezvous.h"

namespace bottomless {
namespace {

constexpr uint64_t kHuge = ~uint64_t{0};
constexpr Exchange::Key kOffered = 7;

enum class Of { exchanges, meetings };  // of which the test makes them itself

// Rank 1 of two or more, whose messages the test makes; what it is sent it takes.
class Hostile {
 public:
  explicit Hostile(int ranks, Of of = Of::exchanges) : network(ranks), transport_(network.of(1)) {
    for (int i = 0; i < ranks; ++i) {
      exchanges.emplace_back();
      if (i == 1) continue;
      threads_.emplace_back([this, i] { take_from(i); });
      threads_.emplace_back([this, i] { send_to(i); });
      if (of == Of::meetings) continue;
      ExchangeOptions options{.deadline = std::chrono::seconds(30), .piece_bytes = kPiece};
      exchanges.back() = Exchange::start(network.of(i), std::move(options)).value();
    }
  }
  ~Hostile() {
    for (int i = 0; i < network.ranks(); ++i) {
      if (i != 1) say(i, {.kind = MessageKind::shutdown});
    }
    for (auto& exchange : exchanges) {
      if (exchange) exchange->close();
    }
    transport_.close();
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  Exchange& operator[](int rank) { return *exchanges[static_cast<size_t>(rank)]; }
  // Waits for nothing: whoever has given this rank up takes nothing any more.
  void say(int to, const Message& message, std::vector<std::byte> payload = {}) {
    const std::span<const std::byte> header = std::as_bytes(std::span(&message, 1));
    std::lock_guard lock(mutex_);
    unsaid_[to].push_back({header.begin(), header.end()});
    if (!payload.empty()) unsaid_[to].push_back(std::move(payload));
    changed_.notify_all();
  }
  // The first message of this kind that it was sent.
  Message await(MessageKind kind) {
    std::unique_lock lock(mutex_);
    for (;;) {
      for (const Message& message : taken_) {
        if (message.kind == kind) return message;
      }
      changed_.wait(lock);
    }
  }
  std::string last_words() {
    std::lock_guard lock(mutex_);
    return words_;
  }

  LocalNetwork network;
  std::vector<std::unique_ptr<Exchange>> exchanges;

 private:
  void send_to(int rank) {
    for (;;) {
      std::vector<std::byte> bytes;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closed_ || !unsaid_[rank].empty(); });
        if (closed_) return;
        bytes = std::move(unsaid_[rank].front());
        unsaid_[rank].pop_front();
      }
      if (!transport_.send(rank, bytes).ok()) return;
    }
  }
  void take_from(int rank) {
    Message message;
    while (transport_.receive(rank, std::as_writable_bytes(std::span(&message, 1))).ok()) {
      std::string payload;
      if (message.kind != MessageKind::pull) payload.resize(message.bytes);
      const std::span<char> all(payload.data(), payload.size());
      if (!all.empty() && !transport_.receive(rank, std::as_writable_bytes(all)).ok()) return;
      std::lock_guard lock(mutex_);
      taken_.push_back(message);
      if (message.kind == MessageKind::failed) words_ = payload;
      changed_.notify_all();
    }
  }

  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> taken_;
  std::string words_;
  std::map<int, std::deque<std::vector<std::byte>>> unsaid_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

TEST(Hostile, WhoAsksForWhatIsNotThereIsRefused) {
  const std::vector<std::byte> memory = pattern(3 * kPiece, 1);
  const Message pull{.kind = MessageKind::pull, .id = 9, .key = kOffered};
  std::vector<Message> asked(9, pull);
  asked[0].offset = 50;
  asked[0].bytes = kHuge - 49;  // their sum is 0
  asked[1].offset = kHuge;
  asked[1].bytes = 1;
  asked[2].bytes = 3 * kPiece + 1;
  asked[3].offset = 3 * kPiece + 1;
  asked[4].offset = kPiece;  // this and all below are in the range
  asked[4].bytes = 256;
  asked[4].format = 1 << 8;  // eight bits for each of what is not a number
  asked[5] = asked[4];
  asked[5].format = 1 << 8 | 0xEE;
  asked[6] = asked[4];
  asked[6].format = 77 << 8 | 1;
  asked[7] = asked[4];
  asked[7].format = 1 << 8 | 1;
  asked[7].bytes = 255;  // not a whole number of numbers
  asked[8] = asked[7];
  asked[8].offset = kPiece + 2;
  asked[8].bytes = 256;
  for (size_t i = 0; i < asked.size(); ++i) {
    for (const Bytes first : {Bytes{0}, Bytes{8}, kHuge - 3 * kPiece}) {
      SCOPED_TRACE(std::to_string(i) + " of what begins at " + std::to_string(first));
      Hostile ranks(2);
      ranks[0].offer(kOffered, 0, plain(memory, first));
      Message message = asked[i];
      if (i > 3) message.offset += first;
      if (i == 3) message.offset = first + 3 * kPiece + 1;
      ranks.say(0, message);
      EXPECT_EQ(ranks.await(MessageKind::failed).id, 9u);
      EXPECT_NE(ranks.last_words().find("asked for"), std::string::npos) << ranks.last_words();
      message = {.kind = MessageKind::pull, .id = 10, .key = kOffered, .offset = first, .bytes = 4};
      ranks.say(0, message);
      EXPECT_EQ(ranks.await(MessageKind::data).id, 10u) << "it is still answered";
    }
  }
}

// What a pull of two pieces may be answered with, `wrong` being the only thing that is.
void expect_given_up(const Message& wrong, Bytes payload, const std::string& why,
                     Format format = Format::plain) {
  SCOPED_TRACE(why);
  Hostile ranks(3);
  std::vector<std::byte> room(4 * kPiece, std::byte{0x5A});  // the pull's memory is in the middle
  auto pulled = start_pull(ranks[0], {.from = 1,
                                      .key = kOffered,
                                      .into = std::span(room).subspan(kPiece, 2 * kPiece),
                                      .format = format,
                                      .element = Element::float32,
                                      .what = "get 'w'"});
  Message message = wrong;
  if (message.id == 0) message.id = ranks.await(MessageKind::pull).id;
  ranks.say(0, message, std::vector<std::byte>(payload));
  const Result<void> outcome = pulled.get();
  EXPECT_TRUE(names(outcome, "rank 1"))
      << (outcome.ok() ? "it succeeded" : outcome.error().message);
  EXPECT_TRUE(names(outcome, why)) << (outcome.ok() ? "it succeeded" : outcome.error().message);
  for (Bytes i = 0; i < kPiece; ++i) {
    ASSERT_EQ(room[i], std::byte{0x5A}) << "before the memory of the pull";
    ASSERT_EQ(room[3 * kPiece + i], std::byte{0x5A}) << "behind the memory of the pull";
  }
}

TEST(Hostile, WhoAnswersWithWhatWasNotAskedForIsGivenUp) {
  const std::string more = "it sent something else than was asked for";
  const Message data{.kind = MessageKind::data, .key = kOffered};
  Message wrong = data;
  wrong.offset = kHuge - 7;  // with 16 bytes: the sum is 8
  wrong.version = wrong.bytes = 16;
  expect_given_up(wrong, 16, more);
  wrong = data;
  wrong.version = wrong.bytes = 2 * kPiece + 1;
  expect_given_up(wrong, 2 * kPiece + 1, more);
  wrong.version = 16;  // says that it is less than it is
  expect_given_up(wrong, 2 * kPiece + 1, more);
  wrong.version = kPiece;  // and more
  wrong.bytes = 16;
  expect_given_up(wrong, 16, more);
  wrong.version = wrong.bytes = 16;
  wrong.offset = kPiece;  // and leaves out what is before
  expect_given_up(wrong, 16, more);
  wrong = data;
  wrong.version = 1024;  // 256 numbers: takes 260 bytes
  wrong.bytes = 259;
  expect_given_up(wrong, 259, more, Format::eight_bits);
  wrong.version = 1023;
  wrong.bytes = 259;
  expect_given_up(wrong, 259, more, Format::eight_bits);
}

TEST(Hostile, WhoSendsMoreThanAnybodyDoesIsGivenUp) {
  const Message data{
      .kind = MessageKind::data, .id = 12345, .key = kOffered, .version = 8, .bytes = kHuge};
  expect_given_up(data, 0, "more at once");
  for (const MessageKind kind : {MessageKind::failed, MessageKind::status})
    expect_given_up({.kind = kind, .id = 12345, .bytes = Bytes{1} << 60}, 0, "more at once");
  expect_given_up({.kind = static_cast<MessageKind>(99)}, 0, "protocol mismatch");
}

TEST(Hostile, NobodyAnswersForAnother) {
  Hostile ranks(3);
  const std::vector<std::byte> memory = pattern(kPiece, 1);
  std::vector<std::byte> into(kPiece);
  auto pulled = start_pull(ranks[0], {.from = 2, .key = kOffered, .into = into, .what = "get 'w'"});
  // The ids of the pulls are not hard to guess.
  ranks.say(0, {.kind = MessageKind::failed, .id = 1, .bytes = 3}, std::vector<std::byte>(3));
  Message lie{.kind = MessageKind::data, .id = 1, .key = kOffered};
  lie.version = lie.bytes = kPiece;
  ranks.say(0, lie, std::vector<std::byte>(kPiece));
  auto other = start_pull(ranks[0], {.from = 1, .key = kOffered, .into = into, .what = "get 'v'"});
  EXPECT_TRUE(names(other.get(), "it sent something else than was asked for"));
  ranks[2].offer(kOffered, 0, plain(memory));
  const Result<void> outcome = pulled.get();
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(into, memory);
}

TEST(Hostile, WhoAsksForTooMuchAtOnceIsGivenUp) {
  Hostile ranks(2);
  const Message pull{.kind = MessageKind::pull, .id = 9, .key = 99};  // that is never offered
  for (size_t i = 0; i <= Exchange::kMostAsked; ++i) ranks.say(0, pull);
  std::vector<std::byte> into(8);
  auto pulled = start_pull(ranks[0], {.from = 1, .key = 5, .into = into, .what = "get 'w'"});
  EXPECT_TRUE(names(pulled.get(), "asks for more at once"));
}

TEST(Hostile, WhoHasTooMuchToSayInAMeetingIsNamed) {
  Hostile ranks(2, Of::meetings);
  Result<std::unique_ptr<Rendezvous>> rendezvous =
      Rendezvous::start(ranks.network.of(0), {.purpose = "meet"});
  ASSERT_TRUE(rendezvous.ok());
  ranks.say(0, {.kind = MessageKind::notice, .key = 0, .version = 1, .offset = kHuge});
  const auto heard = rendezvous.value()->meet(pattern(8, 1));
  ASSERT_FALSE(heard.ok());
  EXPECT_NE(heard.error().message.find("meet: rank 1 has 16777216 TiB to say"), std::string::npos)
      << heard.error().message;
  ranks.say(0, {.kind = MessageKind::shutdown});
}

}  // namespace
}  // namespace bottomless
