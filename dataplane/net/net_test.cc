// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "net/address.h"
#include "net/byte_queue.h"
#include "net/kernel_test.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/proof.h"
#include "net/ring.h"
#include "net/ring_channel.h"
#include "net/spin.h"
#include "net/stream.h"
#include "net/throwaway_ca.h"

namespace farpool::net {
namespace {

constexpr Nanos kPatience = 20 * base::kSecond;

TEST(Identity, IsReadStrictly) {
  const auto good = parse_identity("farpool://5b2f-6c.1e_/client/shard-0");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->pool_uid, "5b2f-6c.1e_");
  EXPECT_EQ(good->role, "client");
  EXPECT_EQ(good->name, "shard-0");
  EXPECT_TRUE(good->authenticated);
  EXPECT_TRUE(parse_identity("farpool://p/operator/o"));
  EXPECT_TRUE(parse_identity("farpool://p/node/n"));
  EXPECT_TRUE(parse_identity("farpool://" + std::string(253, 'p') + "/node/n"));
  for (const std::string& bad : {std::string(),
                                 std::string("farpool://"),
                                 std::string("farpool://p"),
                                 std::string("farpool://client"),
                                 std::string("farpool://p/client"),
                                 std::string("farpool://p/client/"),
                                 std::string("farpool:///client/n"),
                                 std::string("farpool://p//n"),
                                 std::string("farpool://p/client/n/"),
                                 std::string("farpool://p/client/n/m"),
                                 std::string("farpool://p/Client/n"),
                                 std::string("farpool://p/admin/n"),
                                 std::string("FARPOOL://p/client/n"),
                                 std::string("farpool:/p/client/n"),
                                 std::string("https://p/client/n"),
                                 std::string("farpool://p/client/n?x"),
                                 std::string("farpool://p/client/n#x"),
                                 std::string("farpool://p/client/%6e"),
                                 std::string("farpool://p@q/client/n"),
                                 std::string("farpool://p:1/client/n"),
                                 std::string(" farpool://p/client/n"),
                                 std::string("farpool://p/client/n "),
                                 std::string("farpool://p/client/n\0", 21),
                                 std::string("farpool://p/client/\xc3\xa9"),
                                 "farpool://" + std::string(254, 'p') + "/node/n",
                                 "farpool://p/node/" + std::string(254, 'n')}) {
    EXPECT_FALSE(parse_identity(bad)) << bad;
  }
}

TEST(Identity, ANumberOfSessionsIsReadStrictly) {
  EXPECT_EQ(parse_sessions("farpool-sessions:1"), 1u);
  EXPECT_EQ(parse_sessions("farpool-sessions:1048576"), kMostSessions);
  for (const std::string& bad :
       {std::string(), std::string("farpool-sessions"), std::string("farpool-sessions:"), std::string("sessions:1"),
        std::string("farpool-sessions:0"), std::string("farpool-sessions:01"), std::string("farpool-sessions:-1"),
        std::string("farpool-sessions:+1"), std::string("farpool-sessions: 1"), std::string("farpool-sessions:1 "),
        std::string("farpool-sessions:1x"), std::string("farpool-sessions:0x1"), std::string("FARPOOL-sessions:1"),
        std::string("farpool-sessions:1048577"), std::string("farpool-sessions:4294967297"),
        std::string("farpool-sessions:1\0", 19)}) {
    EXPECT_FALSE(parse_sessions(bad)) << bad;
  }
}

TEST(Address, IsReadStrictly) {
  const std::map<std::string, std::string> good{{"10.0.0.1:7400", "10.0.0.1:7400"},
                                                {"[::1]:80", "[::1]:80"},
                                                {"node.pool:0", "node.pool:0"},
                                                {"unix:/run/x.sock", "unix:/run/x.sock"},
                                                {"shm:/run/x.lanes", "shm:/run/x.lanes"}};
  for (const auto& [text, canonical] : good) {
    const auto address = Address::parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->text(), canonical);
  }
  for (const char* bad : {"", "host", "host:", ":1", "host:65536", "host:-1", "host:1x", "::1:80", "[::1]80", "[::1",
                          "unix:", "unix:x", "shm:", "shm:x", "a b:1", "[]:1", "host:1:2"}) {
    const auto address = Address::parse(bad);
    EXPECT_FALSE(address.ok()) << bad;
    if (!address.ok()) EXPECT_EQ(address.code(), base::Code::invalid_argument);
  }
  const std::map<std::string, std::string> why{{"unix:/" + std::string(107, 'x'), "a path of more than 107 bytes"},
                                               {std::string(254, 'h') + ":1", "a host of more than 253 bytes"},
                                               {"8080", "no port"},
                                               {"host:1:2", "more than one colon"},
                                               {"[::1]x80", "no ]:port"},
                                               {"h/p:1", "a host that is none"},
                                               {"host:", "a port outside"}};
  for (const auto& [bad, says] : why) {
    const std::string said = Address::parse(bad).status().message();
    EXPECT_NE(said.find(says), std::string::npos) << bad << ": " << said;
  }
  EXPECT_TRUE(Address::parse("unix:/" + std::string(106, 'x')).ok());
  EXPECT_TRUE(Address::parse(std::string(253, 'h') + ":65535").ok());
}

TEST(ByteQueue, KeepsWhatIsAppendedInOrder) {
  base::Random random(7);
  detail::ByteQueue queue;
  std::string model;
  unsigned char next = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random.chance(0.55)) {
      const std::size_t count = random.below(3000);
      auto room = queue.room(count);
      ASSERT_GE(room.size(), count);
      for (std::size_t i = 0; i < count; ++i) {
        room[i] = std::byte{next};
        model.push_back(static_cast<char>(next++));
      }
      queue.commit(count);
    } else {
      const std::size_t count = random.below(model.size() + 1);
      queue.consume(count);
      model.erase(0, count);
      queue.rewind();
    }
    ASSERT_EQ(base::text_of(queue.bytes()), model);
  }
}

TEST(Rings, CarryBytesInOrderAndTellWhenToRing) {
  auto memory = detail::RingMemory::create();
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  auto producer = memory->producer(true);
  auto consumer = memory->consumer(false);
  base::Random random(5);
  std::uint8_t next = 0, expected = 0;
  std::array<std::byte, 3000> bytes;
  for (int step = 0; step < 2000; ++step) {
    const std::size_t offered = random.below(bytes.size());
    for (std::size_t i = 0; i < offered; ++i) bytes[i] = std::byte(static_cast<std::uint8_t>(next + i));
    next = static_cast<std::uint8_t>(next + producer.write(base::Bytes(bytes).first(offered)));
    const std::size_t got = consumer.read(base::MutableBytes(bytes).first(random.below(bytes.size())));
    for (std::size_t i = 0; i < got; ++i) ASSERT_EQ(bytes[i], std::byte{expected++}) << step;
  }
  while (consumer.read(bytes) > 0) {
  }
  EXPECT_TRUE(consumer.may_sleep());
  EXPECT_EQ(producer.write(base::Bytes(bytes).first(10)), 10u);
  EXPECT_TRUE(producer.must_ring());
  EXPECT_FALSE(producer.must_ring()) << "once is enough";
  EXPECT_FALSE(consumer.may_sleep());
  while (producer.write(bytes) > 0) {
  }
  EXPECT_TRUE(producer.may_sleep());
  EXPECT_GT(consumer.read(bytes), 0u);
  EXPECT_TRUE(consumer.must_ring());
  EXPECT_FALSE(producer.may_sleep());
}

// The same place in the ring never holds the bytes of the round before.
TEST(Rings, BytesGoOnAtTheBeginningWhereTheRingEnds) {
  constexpr std::size_t kCapacity = 64;
  detail::RingWords words{};
  std::array<std::byte, kCapacity> memory{};
  detail::RingProducer producer(words, memory.data(), kCapacity);
  detail::RingConsumer consumer(words, memory.data(), kCapacity);
  std::uint8_t next = 0;
  for (int round = 0; round < 100; ++round) {
    std::array<std::byte, 37> sent, got{};
    for (std::byte& byte : sent) byte = std::byte{next++};
    ASSERT_EQ(producer.write(sent), sent.size());
    EXPECT_EQ(consumer.available(), sent.size());
    ASSERT_EQ(consumer.read(got), got.size());
    ASSERT_EQ(got, sent) << round;
  }
}

// The positions are in memory that the peer writes.
TEST(Rings, PositionsThatCannotBeBreakThemForGood) {
  constexpr std::size_t kCapacity = 64;
  const std::array<std::byte, 10> ten{};
  std::array<std::byte, 2 * kCapacity> got{};
  for (const std::uint64_t wrong : {std::uint64_t{11}, std::uint64_t{1} << 63}) {
    detail::RingWords words{};
    std::array<std::byte, kCapacity> memory{};
    detail::RingProducer producer(words, memory.data(), kCapacity);
    ASSERT_EQ(producer.write(ten), ten.size());
    words.head = wrong;
    EXPECT_EQ(producer.room(), 0u);
    EXPECT_TRUE(producer.broken());
    EXPECT_FALSE(producer.may_sleep()) << "nobody would wake it";
    words.head = 0;
    EXPECT_EQ(producer.write(ten), 0u);
  }
  for (const std::uint64_t wrong : {std::uint64_t{kCapacity + 1}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    detail::RingWords words{};
    std::array<std::byte, kCapacity> memory{};
    detail::RingConsumer consumer(words, memory.data(), kCapacity);
    words.tail = kCapacity;
    EXPECT_EQ(consumer.available(), kCapacity);
    EXPECT_FALSE(consumer.broken());
    words.tail = wrong;
    EXPECT_EQ(consumer.available(), 0u);
    EXPECT_TRUE(consumer.broken());
    EXPECT_FALSE(consumer.may_sleep()) << "nobody would wake it";
    words.tail = kCapacity;
    EXPECT_EQ(consumer.read(got), 0u);
  }
}

TEST(Rings, AreTakenOnlyFromMemoryThatCannotShrink) {
  auto memory = detail::RingMemory::create();
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(::ftruncate(memory->descriptor(), 4096), 0) << "the peer could take memory away";
  EXPECT_TRUE(detail::RingMemory::adopt(::dup(memory->descriptor())).ok());
  const int loose = ::memfd_create("loose", MFD_CLOEXEC);
  struct stat status {};
  ASSERT_EQ(::fstat(memory->descriptor(), &status), 0);
  ASSERT_EQ(::ftruncate(loose, status.st_size), 0);
  EXPECT_EQ(detail::RingMemory::adopt(loose).code(), base::Code::corrupt);
}

// Two connected sockets.
struct SocketPair {
  SocketPair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0); }
  ~SocketPair() {
    for (const int end : ends) {
      if (end >= 0) ::close(end);
    }
  }
  // Sends bytes, with a descriptor.
  void send(base::Bytes bytes, int descriptor) const {
    iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> ancillary{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    EXPECT_EQ(::sendmsg(ends[0], &message, 0), static_cast<ssize_t>(bytes.size()));
  }
  std::array<int, 2> ends{-1, -1};
};

int next_descriptor() {
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  return next;
}

TEST(Rings, AnOfferThatIsNoneIsTurnedDownAndLeavesNoDescriptor) {
  auto memory = detail::RingMemory::create();
  ASSERT_TRUE(memory.ok());
  const SocketPair honest;
  const auto early = detail::receive_rings(honest.ends[1]);
  ASSERT_TRUE(early.ok()) << early.status().message();
  EXPECT_FALSE(*early) << "nothing has come yet";
  ASSERT_TRUE(detail::send_rings(honest.ends[0], *memory).ok());
  std::array<std::byte, 64> hello{};
  const ssize_t length = ::recv(honest.ends[1], hello.data(), hello.size(), MSG_PEEK);
  ASSERT_GT(length, 0);
  const auto received = detail::receive_rings(honest.ends[1]);
  ASSERT_TRUE(received.ok() && *received) << received.status().message();

  const int loose = ::memfd_create("loose", MFD_CLOEXEC);
  const auto offer = base::Bytes(hello).first(static_cast<std::size_t>(length));
  struct Case {
    const char* what;
    std::function<void(SocketPair&)> send;
    base::Code code;
  };
  const Case cases[] = {
      {"nothing", [](SocketPair& pair) { ::close(std::exchange(pair.ends[0], -1)); }, base::Code::unavailable},
      {"a short one", [&](SocketPair& pair) { pair.send(offer.first(offer.size() - 1), memory->descriptor()); },
       base::Code::corrupt},
      {"one without a descriptor",
       [&](SocketPair& pair) { EXPECT_GT(::send(pair.ends[0], offer.data(), offer.size(), 0), 0); },
       base::Code::corrupt},
      {"one of other memory", [&](SocketPair& pair) { pair.send(offer, loose); }, base::Code::corrupt},
      {"one of another program",
       [&](SocketPair& pair) {
         auto other = hello;
         other[0] ^= std::byte{1};
         pair.send(base::Bytes(other).first(offer.size()), memory->descriptor());
       },
       base::Code::corrupt},
  };
  for (const Case& c : cases) {
    SocketPair pair;
    c.send(pair);
    const int before = next_descriptor();
    const auto refused = detail::receive_rings(pair.ends[1]);
    EXPECT_EQ(refused.code(), c.code) << c.what << ": " << refused.status().message();
    EXPECT_EQ(next_descriptor(), before) << c.what;
  }
  ::close(loose);
}

// Runs a loop on a thread of its own.
struct LoopThread {
  Loop loop;
  std::thread thread{[this] { loop.run(); }};
  ~LoopThread() { join(); }
  void join() {
    if (!thread.joinable()) return;
    loop.stop();
    thread.join();
  }
  // Runs a function on the loop's thread, and waits for it.
  template <class F>
  auto on(F what) {
    std::promise<decltype(what())> promise;
    auto future = promise.get_future();
    loop.post([&] {
      if constexpr (std::is_void_v<decltype(what())>) {
        what();
        promise.set_value();
      } else {
        promise.set_value(what());
      }
    });
    return future.get();
  }
};

TEST(Loop, CallsAHookOnceAtTheEndOfItsTurn) {
  struct Hook final : TurnHook {
    explicit Hook(std::string& log, char name) : log(log), name(name) {}
    void on_turn_end() noexcept override { log.push_back(name); }
    std::string& log;
    char name;
  };
  Loop loop;
  std::string log;
  Hook a(log, 'A'), b(log, 'B');
  auto forgotten = std::make_unique<Hook>(log, 'C');
  loop.post([&] {
    loop.at_turn_end(a);
    loop.at_turn_end(*forgotten);
    loop.at_turn_end(b);
    loop.at_turn_end(a);
    log.push_back('1');
    forgotten.reset();
  });
  loop.post([&] { log.push_back('2'); });
  Alarm end(loop, [&] {
    log.push_back('.');
    loop.stop();
  });
  end.set(Loop::now() + 10 * base::kMillisecond);
  loop.run();
  EXPECT_EQ(log, "12AB.");
}

// A coroutine that sleeps for next to no time, again and again, is such an alarm.
// What a hook does before the end still belongs to the turn, and so does what it queues.
TEST(Loop, CallsHooksOfTheTurnBeforeThoseOfItsEnd) {
  struct Hook final : TurnHook {
    explicit Hook(std::function<void()> does) : does(std::move(does)) {}
    void on_turn_end() noexcept override { does(); }
    std::function<void()> does;
  };
  Loop loop;
  std::string order;
  int left = 3;
  Hook end([&] {
    order += 'e';
    loop.stop();
  });
  Hook early([&] {
    order += 'w';
    if (--left > 0) loop.before_turn_end(early);
  });
  loop.post([&] {
    loop.at_turn_end(end);
    loop.before_turn_end(early);
    order += 'h';
  });
  loop.run();
  EXPECT_EQ(order, "hwwwe");
}

TEST(Loop, ReadsTheClockOnceATurn) {
  Loop loop;
  Nanos first = 0, second = 0;
  loop.post([&] {
    first = loop.turn_time();
    EXPECT_LE(first, Loop::now());
    while (Loop::now() == first) {
    }
    EXPECT_EQ(loop.turn_time(), first) << "the same turn";
  });
  Alarm alarm(loop, [&] {
    second = loop.turn_time();
    loop.stop();
  });
  const Nanos when = Loop::now() + base::kMillisecond;
  alarm.set(when);
  loop.run();
  EXPECT_GE(second, when);
  const Nanos outside = Loop::now();
  EXPECT_GE(loop.turn_time(), outside) << "nobody is in a turn";
}

// What an alarm wakes looks at the time, and would set the alarm again, and again, if it had not come.
TEST(Loop, ReadsTheClockAnewWhenAnAlarmFires) {
  struct Nothing final : Poller {
    bool poll() noexcept override { return false; }
    bool may_sleep() noexcept override { return true; }
  } nothing;
  for (const bool polls : {false, true}) {
    Loop loop;
    if (polls) loop.add(nothing);
    Nanos when = 0, seen = 0;
    Alarm alarm(loop, [&] {
      seen = loop.turn_time();
      loop.stop();
    });
    loop.post([&] {
      when = loop.turn_time() + base::kMillisecond;
      alarm.set(when);
      while (Loop::now() < when + base::kMillisecond) continue;
    });
    loop.run();
    EXPECT_GE(seen, when) << (polls ? "with" : "without") << " pollers";
    loop.remove(nothing);
  }
}

TEST(Loop, LooksAtPollersWhateverElseIsAlwaysReady) {
  struct Count final : Poller {
    bool poll() noexcept override {
      ++polls;
      return false;
    }
    bool may_sleep() noexcept override { return true; }
    int polls = 0;
  } count;
  Loop loop;
  int fired = 0;
  std::unique_ptr<Alarm> alarm;
  alarm = std::make_unique<Alarm>(loop, [&] {
    if (count.polls >= 3 || ++fired == 100'000) return loop.stop();
    alarm->set(Loop::now());
  });
  loop.add(count);
  alarm->set(Loop::now());
  loop.run();
  EXPECT_GE(count.polls, 3) << "after " << fired << " alarms";
  EXPECT_LT(fired, 10'000);
  loop.remove(count);
  alarm.reset();
}

TEST(Spin, LastsAsLongAsMostWaitsAreShort) {
  Spin spin(100);
  EXPECT_EQ(spin.patience(), 100);
  const auto waits_until = [&](Nanos patience, Nanos time) {
    int waits = 0;
    for (; waits < 1000 && spin.patience() != patience; ++waits) spin.waited(time);
    return waits;
  };
  EXPECT_LT(waits_until(0, 1001), 20);
  EXPECT_EQ(waits_until(100, 1001), 1000) << "little happens";
  EXPECT_LT(waits_until(100, 1000), 20) << "what it waits for may be asleep, too";
  for (int i = 0; i < 1000; ++i) spin.waited(i % 4 == 0 ? 10'000 : 50);
  EXPECT_EQ(spin.patience(), 100) << "most waits are short";
  for (int i = 0; i < 1000; ++i) spin.waited(i % 4 == 0 ? 50 : 10'000);
  EXPECT_EQ(spin.patience(), 0) << "most waits are long";
  EXPECT_FALSE(Spin(0).on());
}

TEST(Loop, SleepsAtOnceIfLookingHasNotPaid) {
  struct Work final : Poller {
    bool poll() noexcept override {
      ++looks;
      return false;
    }
    bool may_sleep() noexcept override {
      ++sleeps;
      return true;
    }
    int looks = 0, sleeps = 0;
  } work;
  Loop loop;
  loop.set_spin(base::kMillisecond / 10);
  loop.add(work);
  int rounds = 0;
  Alarm alarm(loop, [&] {
    ++rounds;
    const int before = std::exchange(work.looks, 0);
    if (rounds > 60) EXPECT_LE(before, 3) << "a loop that waits for 5 ms each time looks for 0.1 ms each time";
    if (rounds == 80) return loop.stop();
    alarm.set(Loop::now() + 5 * base::kMillisecond);
  });
  alarm.set(Loop::now());
  loop.run();
  EXPECT_GE(work.sleeps, 20) << "once in each of the last rounds";
  loop.remove(work);
}

TEST(Loop, CallsHooksOfPollersBeforeItSleeps) {
  struct Work final : Poller, TurnHook {
    explicit Work(Loop& loop) : loop(loop) {}
    bool poll() noexcept override {
      if (++polls % 3 != 1) return false;
      loop.at_turn_end(*this);
      return true;
    }
    bool may_sleep() noexcept override {
      EXPECT_EQ(ends, (polls + 2) / 3);
      if (polls > 30) loop.stop();
      return false;
    }
    void on_turn_end() noexcept override { ++ends; }
    Loop& loop;
    int polls = 0, ends = 0;
  };
  Loop loop;
  Work work(loop);
  loop.add(work);
  loop.run();
  EXPECT_GT(work.ends, 9);
  loop.remove(work);
}

TEST(Watch, SaysWhenADescriptorCanBeReadAsLongAsItLives) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK | O_CLOEXEC), 0);
  Loop loop;
  std::string got;
  std::unique_ptr<Watch> watch;
  Alarm end(loop, [&] { loop.stop(); });
  end.set(Loop::now() + 30 * base::kSecond);
  loop.post([&] {
    watch = std::make_unique<Watch>(loop, pipe[0], [&] {
      for (char byte = 0; ::read(pipe[0], &byte, 1) == 1;) got.push_back(byte);
      if (got == "a") loop.post([&] { EXPECT_EQ(::write(pipe[1], "b", 1), 1); });
      if (got == "ab") {
        watch.reset();  // from within
        loop.post([&] {
          EXPECT_EQ(::write(pipe[1], "c", 1), 1);
          end.set(Loop::now());
        });
      }
    });
    EXPECT_EQ(::write(pipe[1], "a", 1), 1);
  });
  loop.run();
  EXPECT_EQ(got, "ab");
  char left = 0;
  EXPECT_EQ(::read(pipe[0], &left, 1), 1) << "the watch has closed a descriptor that is not its own";
  EXPECT_EQ(left, 'c');
  for (int each : pipe) ::close(each);
}

TEST(Alarm, FiresWhenSetAgainAndNotWhenCancelled) {
  Loop loop;
  int fired = 0;
  Alarm cancelled(loop, [&] { fired += 100; });
  Alarm moved(loop, [&] {
    ++fired;
    loop.stop();
  });
  cancelled.set(Loop::now());
  cancelled.cancel();
  moved.set(Loop::now() + kPatience);
  const Nanos begin = Loop::now();
  moved.set(begin + base::kMillisecond);
  loop.run();
  EXPECT_EQ(fired, 1);
  EXPECT_GE(Loop::now(), begin + base::kMillisecond);
}

// Sends back what comes in; stops reading while too much is unsent.
struct Echo final : StreamHandler {
  explicit Echo(std::unique_ptr<Stream> incoming) : stream(std::move(incoming)) { stream->start(*this); }
  void on_input() noexcept override {
    stream->write(stream->input());
    stream->consume(stream->input().size());
    most_unsent = std::max(most_unsent, stream->unsent());
    if (stream->unsent() > 1 << 20) stream->pause_reading();
  }
  void on_sent() noexcept override { stream->resume_reading(); }
  void on_closed(const base::Status& why) noexcept override { ended = why; }
  std::unique_ptr<Stream> stream;
  std::size_t most_unsent = 0;
  std::optional<base::Status> ended;
};

// Sends a text, wants it back, then finishes.
struct Caller final : StreamHandler {
  Caller(std::unique_ptr<Stream> connected, std::string text, std::function<void(std::string, base::Status)> done)
      : stream(std::move(connected)), text(std::move(text)), done(std::move(done)) {
    stream->start(*this);
    stream->write(this->text);
    stream->need(this->text.size());
  }
  void on_input() noexcept override {
    got = base::text_of(stream->input());
    stream->consume(got.size());
    stream->finish();
  }
  void on_closed(const base::Status& why) noexcept override { done(got, why); }
  std::unique_ptr<Stream> stream;
  std::string text;
  std::string got;
  std::function<void(std::string, base::Status)> done;
};

enum class Kind { tcp, tls, local, rings };

class Streams : public testing::TestWithParam<Kind> {
 protected:
  Streams() {
    options.address = "127.0.0.1:0";
    if (GetParam() == Kind::tls) {
      options.tls = *Tls::load(ca.issue("farpool://pool/node/n0"), Tls::Kind::mutual);
      client_tls = *Tls::load(ca.issue("farpool://pool/client/c0"), Tls::Kind::mutual);
    } else if (GetParam() == Kind::local || GetParam() == Kind::rings) {
      std::string pattern = (std::filesystem::temp_directory_path() / "farpool-net-XXXXXX").string();
      EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
      directory = pattern;
      options.address = (GetParam() == Kind::local ? "unix:" : "shm:") + directory + "/s";
    }
  }
  ~Streams() override {
    client.join();
    server.join();
    callers.clear();
    echoes.clear();
    listener.reset();
    if (!directory.empty()) std::filesystem::remove_all(directory);
  }
  void listen() {
    auto opened = Listener::open(server.loop, options, [this](std::unique_ptr<Stream> stream) {
      echoes.push_back(std::make_unique<Echo>(std::move(stream)));
    });
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    listener = std::move(*opened);
  }
  // Returns the echo of a text, or the reason why there is none.
  base::Result<std::string> call(std::string text, std::shared_ptr<Tls> tls) {
    std::promise<base::Result<std::string>> promise;
    auto future = promise.get_future();
    client.loop.post([&] {
      connect(client.loop, listener->address(), std::move(tls), Loop::now() + kPatience,
              [&](base::Result<std::unique_ptr<Stream>> stream) {
                if (!stream.ok()) return promise.set_value(stream.status());
                peer = (*stream)->peer();
                callers.push_back(std::make_unique<Caller>(std::move(*stream), std::move(text),
                                                           [&](std::string got, base::Status why) {
                                                             if (why.ok()) {
                                                               promise.set_value(std::move(got));
                                                             } else {
                                                               promise.set_value(std::move(why));
                                                             }
                                                           }));
              });
    });
    return future.get();
  }

  ThrowawayCa ca;
  ListenOptions options;
  std::shared_ptr<Tls> client_tls;
  std::string directory;
  LoopThread server, client;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Echo>> echoes;
  std::vector<std::unique_ptr<Caller>> callers;
  Identity peer;
};

TEST_P(Streams, CarryBytesBothWaysAndCloseCleanly) {
  listen();
  base::Random random(3);
  for (const std::size_t size : {std::size_t{1}, std::size_t{100}, std::size_t{70'000}, std::size_t{9'000'000}}) {
    std::string text(size, ' ');
    for (char& c : text) c = static_cast<char>(random.next());
    const auto got = call(text, client_tls);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_TRUE(*got == text) << size;
  }
  EXPECT_EQ(peer.authenticated, GetParam() == Kind::tls);
  if (GetParam() == Kind::tls) EXPECT_EQ(peer.name, "n0");
  server.join();
  ASSERT_EQ(echoes.size(), 4u);
  for (const auto& echo : echoes) {
    ASSERT_TRUE(echo->ended);
    EXPECT_TRUE(echo->ended->ok()) << echo->ended->message();
    EXPECT_LT(echo->most_unsent, 2u << 20) << "the writer was not held back";
    EXPECT_EQ(echo->stream->peer().name, GetParam() == Kind::tls ? "c0" : "");
  }
}

// Writes pieces, each as soon as the one before has left.
struct Piecemeal final : StreamHandler {
  Piecemeal(std::unique_ptr<Stream> connected, int pieces, std::promise<void>& all_sent)
      : stream(std::move(connected)), left(pieces), all_sent(all_sent) {
    stream->start(*this);
    on_sent();
  }
  void on_input() noexcept override {}
  void on_sent() noexcept override {
    if (left-- > 0) return stream->write("piece");
    if (left == -1) all_sent.set_value();
  }
  void on_closed(const base::Status&) noexcept override {}
  std::unique_ptr<Stream> stream;
  int left;
  std::promise<void>& all_sent;
};
// Is busy until all has been sent, and counts how often it is called.
struct Busy final : StreamHandler {
  Busy(std::unique_ptr<Stream> incoming, std::size_t bytes, std::shared_future<void> sent, std::promise<void>& all_read)
      : stream(std::move(incoming)), left(bytes), sent(std::move(sent)), all_read(all_read) {
    stream->start(*this);
  }
  void on_input() noexcept override {
    ++calls;
    sent.wait();
    left -= stream->input().size();
    stream->consume(stream->input().size());
    if (left == 0) all_read.set_value();
  }
  void on_closed(const base::Status&) noexcept override {}
  std::unique_ptr<Stream> stream;
  std::size_t left;
  std::shared_future<void> sent;
  std::promise<void>& all_read;
  int calls = 0;
};

// Over TLS each piece is a record. A handler that got one record a call would answer each by one of its own, for ever.
TEST_P(Streams, ShowAllThatHasComeInAtOnce) {
  constexpr int kPieces = 60;
  std::promise<void> all_sent, all_read;
  const std::shared_future<void> sent = all_sent.get_future().share();
  std::unique_ptr<Busy> busy;
  std::unique_ptr<Piecemeal> writer;
  auto opened = Listener::open(server.loop, options, [&](std::unique_ptr<Stream> stream) {
    busy = std::make_unique<Busy>(std::move(stream), kPieces * 5, sent, all_read);
  });
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  listener = std::move(*opened);
  client.loop.post([&] {
    connect(client.loop, listener->address(), client_tls, Loop::now() + kPatience, [&](auto stream) {
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      writer = std::make_unique<Piecemeal>(std::move(*stream), kPieces, all_sent);
    });
  });
  ASSERT_EQ(all_read.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  server.on([&] {
    EXPECT_LE(busy->calls, 5) << "for " << kPieces << " pieces";
    busy.reset();
  });
  client.on([&] { writer.reset(); });
}

TEST_P(Streams, AreBoundedInNumber) {
  options.max_connections = 2;
  listen();
  std::vector<std::unique_ptr<Stream>> held;
  for (int i = 0; i < 2; ++i) {
    std::promise<bool> opened;
    client.loop.post([&] {
      connect(client.loop, listener->address(), client_tls, Loop::now() + kPatience, [&](auto stream) {
        if (stream.ok()) held.push_back(std::move(*stream));
        opened.set_value(stream.ok());
      });
    });
    ASSERT_TRUE(opened.get_future().get());
  }
  {
    const auto got = call("one too many", client_tls);
    EXPECT_TRUE(!got.ok() || got->empty());
  }
  EXPECT_GE(listener->stats().refused_full, 1u);
  client.on([&] { held.clear(); });
  for (const Nanos end = Loop::now() + kPatience; listener->stats().open == 2 && Loop::now() < end;)
    std::this_thread::yield();
  EXPECT_TRUE(call("room again", client_tls).ok());
}

class TcpStreams : public Streams {
 protected:
  // Returns the listener's address, as seen from this machine.
  std::string at(const std::string& host) const {
    return host + listener->address().substr(listener->address().rfind(':'));
  }
  std::string say(const std::string& address) {
    std::promise<std::string> promise;
    client.loop.post([&] {
      connect(client.loop, address, nullptr, Loop::now() + kPatience, [&](auto stream) {
        if (!stream.ok()) return promise.set_value(stream.status().message());
        callers.push_back(std::make_unique<Caller>(
            std::move(*stream), "hello",
            [&](std::string got, const base::Status& why) { promise.set_value(why.ok() ? got : why.message()); }));
      });
    });
    return promise.get_future().get();
  }
};

TEST_P(TcpStreams, ReachAListenerForBothFamilies) {
  options.address = "[::]:0";
  listen();
  EXPECT_EQ(say(at("[::1]")), "hello");
  EXPECT_EQ(say(at("127.0.0.1")), "hello");
  server.join();
  ASSERT_EQ(echoes.size(), 2u);
  EXPECT_TRUE(echoes[0]->stream->remote().starts_with("[::1]:")) << echoes[0]->stream->remote();
  EXPECT_TRUE(echoes[1]->stream->remote().starts_with("127.0.0.1:")) << echoes[1]->stream->remote();
}

TEST_P(TcpStreams, AskAfterAPeerThatIsSilent) {
  listen();
  std::promise<std::unique_ptr<Stream>> opened;
  client.loop.post([&] {
    connect(client.loop, listener->address(), nullptr, Loop::now() + kPatience,
            [&](auto stream) { opened.set_value(stream.ok() ? std::move(*stream) : nullptr); });
  });
  std::unique_ptr<Stream> held = opened.get_future().get();
  ASSERT_NE(held, nullptr);
  for (const Nanos end = Loop::now() + kPatience; server.on([this] { return echoes.empty(); }) && Loop::now() < end;) {
  }
  int both_ends = 0;
  for (int socket = 0; socket < 1024; ++socket) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sin_family != AF_INET) continue;
    ++both_ends;
    const auto option = [socket](int level, int name) {
      int value = -1;
      socklen_t size = sizeof value;
      EXPECT_EQ(::getsockopt(socket, level, name, &value, &size), 0);
      return value;
    };
    EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), kKeepAliveSeconds);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), kKeepAliveSeconds / 3);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 3);
  }
  EXPECT_EQ(both_ends, 2);
  client.on([&] { held.reset(); });
}

INSTANTIATE_TEST_SUITE_P(Tcp, TcpStreams, testing::Values(Kind::tcp));

TEST(Listener, TakesIpv4AloneWhereTheKernelHasNoOther) {
  EXPECT_EXIT(
      {
        lose_ipv6();
        Loop loop;
        const auto opened = Listener::open(loop, {.address = "[::]:0"}, [](std::unique_ptr<Stream>) {});
        const std::string address = opened.ok() ? (*opened)->address() : opened.status().message();
        std::cerr << address << "\n";
        std::_Exit(address.starts_with("0.0.0.0:") ? 0 : 1);
      },
      testing::ExitedWithCode(0), "0.0.0.0:");
}

// Says whether a process that has no descriptor left refuses peers that come then.
bool refuses_without_descriptors() {
  constexpr std::size_t kPeers = 20;
  LoopThread thread;
  std::atomic<int> taken = 0;
  auto listener = Listener::open(thread.loop, {.address = "127.0.0.1:0", .when_full = "-full\r\n"},
                                 [&](const std::unique_ptr<Stream>&) { ++taken; });
  const std::string where = (*listener)->address();
  thread.on([] {});  // it has begun: what it needs descriptors for is done
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.substr(where.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::array<int, kPeers> peers{};
  for (int& peer : peers) peer = ::socket(AF_INET, SOCK_STREAM, 0);
  const auto last = static_cast<rlim_t>(peers.back());
  const rlimit none{.rlim_cur = last + 1, .rlim_max = last + 1};
  if (::setrlimit(RLIMIT_NOFILE, &none) != 0) return false;
  const auto refused = [&](int peer) {
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (::connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return false;
    std::array<char, 16> heard{};
    if (::recv(peer, heard.data(), heard.size(), MSG_WAITALL) != 7) return false;
    return std::string_view(heard.data()) == "-full\r\n";
  };
  const bool all = std::ranges::all_of(peers, refused) && (*listener)->stats().refused_full == kPeers && taken == 0;
  thread.join();  // a listener ends on its loop's thread, or after it
  return all;
}

TEST(Listener, RefusesPeersWhenItIsOutOfDescriptors) {
  EXPECT_EXIT(std::_Exit(refuses_without_descriptors() ? 0 : 1), testing::ExitedWithCode(0), "");
}

class TlsStreams : public Streams {};

TEST_P(TlsStreams, RefuseStrangersAndForgedNames) {
  // Ends the call without TLS, whose one byte begins no handshake. A busy machine shakes hands within it.
  options.handshake_deadline = 3 * base::kSecond;
  listen();
  ThrowawayCa other;
  const auto stranger = call("x", *Tls::load(other.issue("farpool://pool/client/c0"), Tls::Kind::mutual));
  EXPECT_EQ(stranger.code(), base::Code::forbidden);
  // A certificate of the right authority without a farpool name is not even loaded; if one slips in, the peer refuses
  // it.
  for (const char* uri : {"", "https://example.org/", "farpool://pool/admin/x"}) {
    const auto nameless = Tls::load(ca.issue(uri), Tls::Kind::mutual);
    EXPECT_EQ(nameless.code(), base::Code::invalid_argument) << uri;
  }
  const auto plain = call("x", nullptr);
  EXPECT_TRUE(!plain.ok() || plain->empty());
  EXPECT_TRUE(call("still there", client_tls).ok());
  EXPECT_GE(listener->stats().failed_handshakes, 2u);
}

TEST_P(TlsStreams, FollowRenewedCertificatesAndKeepTheOldOnesOverBrokenFiles) {
  const TlsFiles files = ca.issue("farpool://pool/node/before");
  options.tls = *Tls::load(files, Tls::Kind::mutual);
  listen();
  ASSERT_TRUE(call("x", client_tls).ok());
  EXPECT_EQ(peer.name, "before");
  ca.issue_into(files, "farpool://pool/node/after");
  const Nanos end = Loop::now() + kPatience;
  while (peer.name != "after" && Loop::now() < end) ASSERT_TRUE(call("x", client_tls).ok());
  EXPECT_EQ(peer.name, "after");
  EXPECT_EQ(options.tls->generation(), 2u);
  std::ofstream(files.cert) << "no certificate";
  while (options.tls->trouble().ok() && Loop::now() < end) ASSERT_TRUE(call("x", client_tls).ok());
  EXPECT_FALSE(options.tls->trouble().ok());
  EXPECT_TRUE(call("x", client_tls).ok());
  EXPECT_EQ(peer.name, "after");
}

TEST_P(TlsStreams, GiveUpOnAPeerThatDoesNotShakeHands) {
  options.handshake_deadline = 20 * base::kMillisecond;
  listen();
  std::unique_ptr<Stream> silent;
  std::promise<void> connected;
  client.loop.post([&] {
    connect(client.loop, listener->address(), nullptr, Loop::now() + kPatience, [&](auto stream) {
      ASSERT_TRUE(stream.ok());
      silent = std::move(*stream);
      connected.set_value();
    });
  });
  connected.get_future().get();
  for (const Nanos end = Loop::now() + kPatience; listener->stats().failed_handshakes == 0 && Loop::now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(listener->stats().failed_handshakes, 1u);
  client.on([&] { silent.reset(); });
}

INSTANTIATE_TEST_SUITE_P(Tls, TlsStreams, testing::Values(Kind::tls));

TEST(Connect, SaysWhyNot) {
  LoopThread thread;
  const auto attempt = [&](std::string address, Nanos deadline) {
    std::promise<base::Code> code;
    thread.loop.post(
        [&] { connect(thread.loop, address, nullptr, deadline, [&](auto stream) { code.set_value(stream.code()); }); });
    return code.get_future().get();
  };
  // The port is this test's, and nobody listens there.
  const int bound = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof there;
  ASSERT_EQ(::bind(bound, reinterpret_cast<sockaddr*>(&there), length), 0);
  ASSERT_EQ(::getsockname(bound, reinterpret_cast<sockaddr*>(&there), &length), 0);
  EXPECT_EQ(attempt("127.0.0.1:" + std::to_string(ntohs(there.sin_port)), Loop::now() + kPatience),
            base::Code::unavailable);
  ::close(bound);
  EXPECT_EQ(attempt("nonsense", Loop::now() + kPatience), base::Code::invalid_argument);
  EXPECT_EQ(attempt("unix:/nowhere/at/all", Loop::now() + kPatience), base::Code::unavailable);
  // A listener whose backlog nobody empties takes the connection and never speaks TLS.
  Loop idle;
  auto listener = Listener::open(idle, {.address = "127.0.0.1:0"}, [](auto) {});
  ASSERT_TRUE(listener.ok());
  ThrowawayCa ca;
  auto tls = *Tls::load(ca.issue("farpool://pool/client/c0"), Tls::Kind::mutual);
  std::promise<base::Code> code;
  thread.loop.post([&] {
    connect(thread.loop, (*listener)->address(), tls, Loop::now() + 30 * base::kMillisecond,
            [&](auto stream) { code.set_value(stream.code()); });
  });
  EXPECT_EQ(code.get_future().get(), base::Code::timed_out);
}

// Removes the sockets of dead processes. A young socket's process may be about to listen, and other files do not
// matter.
TEST(Listener, RemovesWhatProcessesThatWereKilledHaveLeft) {
  namespace fs = std::filesystem;
  std::string directory = (fs::temp_directory_path() / "farpool-net-XXXXXX").string();
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::vector<int> listening;
  const auto add = [&](const std::string& name, bool listens, bool old) {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, (directory + "/" + name).c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      ASSERT_EQ(::listen(socket, 1), 0);
      listening.push_back(socket);
    } else {
      ::close(socket);
    }
    if (old) fs::last_write_time(directory + "/" + name, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  };
  add("dead.lanes", false, true);
  add("young.lanes", false, false);
  add("living.lanes", true, true);
  add("other.sock", false, true);
  std::ofstream(directory + "/file.lanes") << "no socket";
  fs::last_write_time(directory + "/file.lanes", fs::file_time_type::clock::now() - std::chrono::minutes(2));
  remove_left_over("shm:" + directory + "/own.lanes");
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(directory)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"file.lanes", "living.lanes", "other.sock", "young.lanes"}));
  for (const int socket : listening) ::close(socket);
  fs::remove_all(directory);
}

// The socket of another program: it takes connections and gives no rings.
TEST(Connect, WantsRingsFromWhoHasThem) {
  LoopThread thread;
  std::string pattern = (std::filesystem::temp_directory_path() / "farpool-net-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  std::vector<std::unique_ptr<Stream>> taken;
  auto listener =
      Listener::open(thread.loop, {.address = "unix:" + pattern + "/s"}, [&](std::unique_ptr<Stream> stream) {
        stream->write("no rings, sixteen bytes and more");
        taken.push_back(std::move(stream));
      });
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  std::promise<base::Code> code;
  thread.loop.post([&] {
    connect(thread.loop, "shm:" + pattern + "/s", nullptr, Loop::now() + kPatience,
            [&](auto stream) { code.set_value(stream.code()); });
  });
  EXPECT_EQ(code.get_future().get(), base::Code::corrupt);
  thread.on([&] { taken.clear(); });
  thread.join();
  listener->reset();
  std::filesystem::remove_all(pattern);
}

// Only processes of one user speak over rings. The kernel names the user at the other end of the socket, so that only
// root can pose as another here.
TEST(Connect, GivesRingsToNoOtherUser) {
  LoopThread thread;
  std::string pattern = (std::filesystem::temp_directory_path() / "farpool-net-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  std::filesystem::permissions(pattern, std::filesystem::perms::all);
  auto listener = Listener::open(thread.loop, {.address = "shm:" + pattern + "/s", .unix_mode = 0777},
                                 [](std::unique_ptr<Stream> stream) { stream->close({}); });
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  // Returns what the listener sends to a process of this user, or of another: its greeting, or the end of the
  // connection.
  const auto greeted = [&](uid_t user) {
    ssize_t got = -1;
    std::thread([&] {
      // Changes this thread alone; the C library's own function would change all.
      ASSERT_EQ(::syscall(SYS_setresuid, -1, user, -1), 0);
      const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      std::strncpy(address.sun_path, (pattern + "/s").c_str(), sizeof address.sun_path - 1);
      ASSERT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      std::array<char, 64> bytes;
      got = ::recv(socket, bytes.data(), bytes.size(), 0);
      ::close(socket);
    }).join();
    return got;
  };
  EXPECT_EQ(greeted(::geteuid()), 16);
  EXPECT_EQ((*listener)->stats().failed_handshakes, 0u);
  if (::geteuid() == 0) {
    EXPECT_EQ(greeted(65532), 0);
    EXPECT_EQ((*listener)->stats().failed_handshakes, 1u);
  }
  thread.join();
  listener->reset();
  std::filesystem::remove_all(pattern);
}

TEST(Proof, IsOfOneSecretPurposeAndPairOfNonces) {
  const auto secret = base::bytes_of("0123456789abcdef");
  const Nonce a = draw_nonce(), b = draw_nonce(), c = draw_nonce();
  EXPECT_NE(a, b);
  const Proof proof = prove(secret, "node", a, b);
  EXPECT_TRUE(same_proof(proof, prove(secret, "node", a, b)));
  for (const Proof& other :
       {prove(secret, "client", a, b), prove(secret, "node", b, a), prove(secret, "node", a, c),
        prove(secret, "node", c, b), prove(base::bytes_of("0123456789abcdeg"), "node", a, b), prove(secret, "node")}) {
    EXPECT_FALSE(same_proof(proof, other));
  }
  EXPECT_FALSE(same_proof(proof, base::Bytes(proof).first(15)));
  // Python's hmac of "node", a zero byte, 16 zero bytes and the bytes from 0 to 15.
  Nonce counted;
  for (std::size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<std::byte>(i);
  constexpr std::array<std::uint8_t, 16> kKnown{0xbe, 0xb2, 0x8d, 0xbc, 0xcf, 0x2c, 0xe1, 0xba,
                                                0xe5, 0xc9, 0xd1, 0x50, 0x41, 0xb5, 0xf9, 0x89};
  EXPECT_TRUE(same_proof(prove(secret, "node", Nonce{}, counted), std::as_bytes(std::span(kKnown))));
}

std::string name_of(const testing::TestParamInfo<Kind>& info) {
  constexpr std::array kNames{"Tcp", "Tls", "Local", "Rings"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, Streams, testing::Values(Kind::tcp, Kind::tls, Kind::local, Kind::rings), name_of);

}  // namespace
}  // namespace farpool::net
