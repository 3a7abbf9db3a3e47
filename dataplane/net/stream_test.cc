// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection on one loop: what a stream tells its handler, and when.
#include "net/stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "net/listener.h"
#include "net/loop.h"
#include "net/one_loop_test.h"
#include "net/throwaway_ca.h"

namespace farpool::net {
namespace {

constexpr std::size_t kAhead = 512 * 1024;
// More than the buffers of both sockets hold.
constexpr std::size_t kTooMuch = 16 << 20;
constexpr Nanos kLastWords = 10 * base::kSecond;
constexpr Nanos kGoodbye = base::kSecond;

enum class Kind { tcp, tls, local, rings };

// Notes what happens to its stream, and does what a test wants.
struct Probe final : StreamHandler {
  explicit Probe(std::unique_ptr<Stream> connected) : stream(std::move(connected)) {}
  void start() { stream->start(*this); }
  void on_input() noexcept override {
    ++inputs;
    most = std::max(most, stream->input().size());
    if (input) return input();
    got += base::text_of(stream->input());
    stream->consume(stream->input().size());
  }
  void on_flush() noexcept override {
    ++flushes;
    if (flush) flush();
  }
  void on_sent() noexcept override { ++sent; }
  bool on_input_end() noexcept override {
    ++input_ends;
    if (input_end) input_end();
    return goes_on;
  }
  bool on_output_end() noexcept override {
    ++output_ends;
    return reads_on;
  }
  void on_closed(const base::Status& why) noexcept override {
    ++closings;
    closed = why;
    if (closing) closing();
  }

  std::unique_ptr<Stream> stream;
  std::string got;
  std::size_t most = 0;  // bytes that were there at once
  int inputs = 0, flushes = 0, sent = 0, input_ends = 0, output_ends = 0, closings = 0;
  bool goes_on = false, reads_on = false;
  std::function<void()> input, flush, input_end, closing;
  std::optional<base::Status> closed;
};

class BothEnds : public OneLoop, public testing::TestWithParam<Kind> {
 protected:
  BothEnds() {
    ListenOptions options{.address = "127.0.0.1:0"};
    if (GetParam() == Kind::tls) {
      options.tls = *Tls::load(ca_.issue("farpool://pool/node/n0"), Tls::Kind::mutual);
      tls_ = *Tls::load(ca_.issue("farpool://pool/client/c0"), Tls::Kind::mutual);
    } else if (GetParam() != Kind::tcp) {
      directory_ = (std::filesystem::temp_directory_path() / "farpool-stream-XXXXXX").string();
      EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
      options.address = (GetParam() == Kind::local ? "unix:" : "shm:") + directory_ + "/s";
    }
    auto opened = Listener::open(
        loop, options, [this](std::unique_ptr<Stream> stream) { far = std::make_unique<Probe>(std::move(stream)); });
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    listener_ = std::move(*opened);
    meet();
  }
  ~BothEnds() override {
    near.reset();
    far.reset();
    listener_.reset();
    turns(1);
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  void start() const {
    near->start();
    far->start();
  }

  // Connects two new ends.
  void meet() {
    near.reset();
    far.reset();
    connect(loop, listener_->address(), tls_, Loop::now() + kPatience, [this](auto stream) {
      EXPECT_TRUE(stream.ok()) << stream.status().message();
      if (stream.ok()) near = std::make_unique<Probe>(std::move(*stream));
    });
    EXPECT_TRUE(until([this] { return near && far; }));
  }

  // Runs the loop until the near end has closed, or for kPatience. Returns whether it has. The loop sleeps meanwhile.
  bool near_closes() {
    near->closing = [this] { loop.stop(); };
    Alarm patience(loop, [this] { loop.stop(); });
    patience.set(Loop::now() + kPatience);
    loop.run();
    return near->closings > 0;
  }
  // Calls a function on the loop's thread, and lets the turn end.
  void on_loop(std::function<void()> what) {
    loop.post(std::move(what));
    turns(2);
  }

  std::unique_ptr<Probe> near, far;

 private:
  ThrowawayCa ca_;
  std::shared_ptr<Tls> tls_;  // of the near end
  std::string directory_;
  std::unique_ptr<Listener> listener_;
};

TEST_P(BothEnds, AStreamReadsOnlySoFarAheadOfItsHandler) {
  constexpr std::size_t kAll = 8 << 20;
  start();
  far->input = [] {};  // leaves it
  on_loop([&] { near->stream->write(std::string(kAll, 'x')); });
  ASSERT_TRUE(until([&] { return far->stream->input().size() >= kAhead / 2; }));
  turns(100);
  std::size_t got = 0;
  ASSERT_TRUE(until([&] {
    const std::size_t some = std::min<std::size_t>(far->stream->input().size(), 100'000);
    far->stream->consume(some);
    got += some;
    return got == kAll;
  }));
  EXPECT_LT(far->most, kAll / 2);
}

TEST_P(BothEnds, AHandlerSaysHowMuchItNeeds) {
  start();
  far->stream->need(kAhead * 2);
  on_loop([&] { near->stream->write(std::string(kAhead * 2, 'x')); });
  ASSERT_TRUE(until([&] { return far->inputs > 0; }));
  EXPECT_EQ(far->inputs, 1);
  EXPECT_EQ(far->got.size(), kAhead * 2);
}

// Rings are read as far as they are full, and have one end.
class OverSockets : public BothEnds {};

TEST_P(OverSockets, AHandlerThatHasPausedIsLeftAlone) {
  start();
  far->input = [&] {
    far->stream->consume(far->stream->input().size());
    far->stream->resume_reading();
    far->stream->pause_reading();
  };
  on_loop([&] { near->stream->write("a"); });
  ASSERT_TRUE(until([&] { return far->inputs == 1; }));
  on_loop([&] { near->stream->write("b"); });
  ASSERT_TRUE(until([&] { return far->stream->readable(); }));
  turns(20);
  EXPECT_EQ(far->inputs, 1);
  on_loop([&] { far->stream->resume_reading(); });
  EXPECT_TRUE(until([&] { return far->inputs == 2; }));
}

TEST_P(OverSockets, ReadsGrowWhileTheyAreFilled) {
  constexpr std::size_t kMuch = 100'000;
  near->start();
  on_loop([&] { near->stream->write(std::string(kMuch, 'x')); });
  ASSERT_TRUE(until([&] { return near->stream->unsent() == 0; }));
  far->start();
  ASSERT_TRUE(until([&] { return far->got.size() == kMuch; }));
  EXPECT_LT(far->inputs, GetParam() == Kind::tls ? 20 : 10) << "24 reads of the first size would be needed";
}

TEST_P(BothEnds, WhatIsWrittenInATurnLeavesAtItsEnd) {
  start();
  near->flush = [&] { near->stream->write("!"); };
  on_loop([&] {
    near->stream->write("a");
    near->stream->write("");
    const auto room = near->stream->reserve(10);
    std::fill(room.begin(), room.end(), std::byte{'b'});
    near->stream->take_back(8);
    EXPECT_EQ(near->stream->unsent(), 3u);
    EXPECT_EQ(near->flushes, 0);
  });
  ASSERT_TRUE(until([&] { return far->got.size() == 4; }));
  EXPECT_EQ(far->got, "abb!");
  EXPECT_EQ(near->flushes, 1);
  EXPECT_TRUE(until([&] { return near->sent == 1; }));
  EXPECT_EQ(near->stream->unsent(), 0u);
  turns(20);
  EXPECT_EQ(near->sent, 1);
}

TEST_P(BothEnds, AnswersLeaveRightAfterTheInput) {
  start();
  far->input = [&] {
    far->stream->consume(far->stream->input().size());
    far->stream->write("answer");
  };
  on_loop([&] { near->stream->write("a"); });
  ASSERT_TRUE(until([&] { return near->got == "answer"; }));
  EXPECT_EQ(far->sent, 1);
}

TEST_P(BothEnds, AClosedStreamTellsItsHandlerOnceAndNothingAfterwards) {
  start();
  far->goes_on = true;
  far->input = [&] {
    far->stream->close({base::Code::unavailable, "first"});
    far->stream->close({base::Code::unavailable, "second"});
    EXPECT_FALSE(far->stream->open());
    EXPECT_FALSE(far->stream->readable());
    EXPECT_EQ(far->closings, 0) << "not from within a call";
    far->stream->write("nobody gets this");
    far->stream->finish();
    far->stream->resume_reading();
  };
  on_loop([&] { near->stream->write("a"); });
  ASSERT_TRUE(until([&] { return far->closings > 0 && near->closings > 0; }));
  on_loop([&] { far->stream->write("nobody gets this"); });
  EXPECT_EQ(far->closed->message(), "first");
  EXPECT_EQ(far->closings, 1);
  EXPECT_EQ(far->inputs, 1);
  EXPECT_EQ(far->input_ends + far->output_ends + far->sent, 0);
  EXPECT_EQ(near->got, "");
}

TEST_P(BothEnds, ADestroyedStreamTellsNothing) {
  start();
  int told = 0;
  far->closing = [&] { ++told; };
  far->flush = [&] { ++told; };
  on_loop([&] {
    far->stream->write("nobody gets this");
    far->stream->close({});
    far->stream.reset();
  });
  ASSERT_TRUE(until([&] { return near->closings > 0; }));
  EXPECT_EQ(told, 0);
  EXPECT_EQ(far->inputs + far->input_ends + far->output_ends + far->closings, 0);
}

TEST_P(BothEnds, APeerThatFinishesIsHeardToItsEnd) {
  start();
  on_loop([&] {
    near->stream->write(std::string(1'000'000, 'x'));
    near->stream->finish();
    near->stream->finish();
  });
  ASSERT_TRUE(until([&] { return far->closings > 0 && near->closings > 0; }));
  EXPECT_EQ(far->got.size(), 1'000'000u);
  EXPECT_EQ(far->input_ends, 1);
  EXPECT_TRUE(far->closed->ok()) << far->closed->message();
  EXPECT_TRUE(near->closed->ok()) << near->closed->message();
}

TEST_P(OverSockets, AHandlerMayGoOnWithTheOtherHalf) {
  start();
  far->goes_on = true;
  on_loop([&] { near->stream->finish(); });
  ASSERT_TRUE(until([&] { return far->input_ends > 0; }));
  on_loop([&] {
    EXPECT_TRUE(far->stream->open());
    far->stream->resume_reading();
  });
  turns(20);
  on_loop([&] { far->stream->finish(); });
  ASSERT_TRUE(until([&] { return far->closings > 0 && near->closings > 0; }));
  EXPECT_TRUE(far->closed->ok()) << far->closed->message();
  EXPECT_EQ(far->input_ends, 1);
}

// A read that is under way would meet the end of the peer first.
TEST_P(BothEnds, AHandlerMayReadOnWhenThePeerTakesNothingMore) {
  near->stream->pause_reading();
  near->reads_on = near->goes_on = true;
  far->input = [] {};  // leaves it
  start();
  on_loop([&] { near->stream->write(std::string(kTooMuch, 'x')); });
  on_loop([&] { near->stream->write("and more"); });
  on_loop([&] { far->stream->write("last words"); });
  ASSERT_TRUE(until([&] { return far->sent > 0 && far->inputs > 0; }));
  on_loop([&] { far->stream->close({}); });
  ASSERT_TRUE(until([&] { return near->output_ends > 0; }));
  EXPECT_EQ(near->stream->unsent(), 0u);
  on_loop([&] { near->stream->write("nobody gets this"); });
  EXPECT_EQ(near->stream->unsent(), 0u);
  EXPECT_EQ(near->closings, 0);
  on_loop([&] { near->stream->resume_reading(); });
  ASSERT_TRUE(until([&] { return near->got == "last words"; }));
  on_loop([&] { near->stream->finish(); });
  ASSERT_TRUE(until([&] { return near->closings > 0; }));
  EXPECT_EQ(near->output_ends, 1);
}

TEST_P(BothEnds, APeerThatHasGoneIsFoundByAWrite) {
  near->stream->pause_reading();
  near->reads_on = true;
  start();
  on_loop([&] { far->stream->close({}); });
  const Nanos end = Loop::now() + kPatience;
  while (near->output_ends == 0 && Loop::now() < end) on_loop([&] { near->stream->write("nobody gets this"); });
  on_loop([&] { near->stream->write("nor this"); });
  EXPECT_EQ(near->stream->unsent(), 0u);
  EXPECT_EQ(near->output_ends, 1);
  EXPECT_EQ(near->closings, 0);
}

TEST_P(BothEnds, AStreamWhosePeerTakesNothingMoreClosesUnlessItIsToReadOn) {
  near->stream->pause_reading();
  start();
  on_loop([&] { far->stream->close({}); });
  const Nanos end = Loop::now() + kPatience;
  while (near->closings == 0 && Loop::now() < end) on_loop([&] { near->stream->write("nobody gets this"); });
  ASSERT_EQ(near->closings, 1);
  EXPECT_FALSE(near->closed->ok());
  EXPECT_EQ(near->output_ends, 1);
}

TEST_P(BothEnds, AClosedStreamHasNoMoreToSayOfWhatItWrote) {
  near->reads_on = true;
  near->start();
  on_loop([&] { near->stream->write(std::string(kTooMuch, 'x')); });
  on_loop([&] { near->stream->close({}); });
  ASSERT_TRUE(until([&] { return near->closings > 0; }));
  turns(20);
  EXPECT_EQ(near->output_ends + near->sent, 0);
}

// What a peer sends after a goodbye breaks TLS, and rings have one end.
class OverPlainSockets : public BothEnds {
 protected:
  // The near end finishes and the far end sends much. Tries again where this machine took longer for it than the near end waits.
  void hear_out(bool reads) {
    for (const Nanos end = Loop::now() + kPatience;;) {
      ASSERT_LT(Loop::now(), end) << "this machine never does it within a second";
      if (reads) near->start();
      far->goes_on = true;
      far->start();
      const Nanos began = Loop::now();
      on_loop([&] { near->stream->finish(); });
      ASSERT_TRUE(until([&] { return far->input_ends > 0; }));
      on_loop([&] { far->stream->write(std::string(kTooMuch, 'x')); });
      ASSERT_TRUE(until([&] { return far->sent + far->closings > 0; }));
      if (Loop::now() < began + kGoodbye) break;
      meet();
    }
    EXPECT_EQ(far->sent, 1) << far->closed.value_or(base::Status()).message();
    on_loop([&] { far->stream->finish(); });
    ASSERT_TRUE(until([&] { return far->closings > 0; }));
    EXPECT_TRUE(far->closed->ok()) << far->closed->message();
  }
};

// A socket that is closed with unread input resets the connection.
TEST_P(OverPlainSockets, AStreamThatFinishesTakesWhatItsPeerStillSends) {
  hear_out(true);
  ASSERT_TRUE(until([&] { return near->closings > 0; }));
  EXPECT_TRUE(near->closed->ok()) << near->closed->message();
  EXPECT_EQ(near->inputs, 0);
}

TEST_P(OverPlainSockets, AStreamThatDoesNotReadTakesItToo) { hear_out(false); }

TEST_P(OverPlainSockets, AConnectionThatBreaksIsNotOneThatEnds) {
  far->goes_on = true;
  far->start();
  on_loop([&] { far->stream->write("nobody reads this"); });
  ASSERT_TRUE(until([&] { return near->stream->readable(); }));
  on_loop([&] { near->stream->close({}); });
  ASSERT_TRUE(until([&] { return far->closings > 0; }));
  EXPECT_FALSE(far->closed->ok());
  EXPECT_EQ(far->input_ends, 0);
}

// The far end neither reads nor closes.
TEST_P(BothEnds, AStreamThatFinishesWaitsASecondForItsPeer) {
  near->start();
  std::optional<Alarm> again;
  again.emplace(loop, [&] {
    near->stream->finish();  // makes it no longer
    again->set(Loop::now() + 100 * base::kMillisecond);
  });
  const Nanos began = Loop::now();
  again->set(began);
  ASSERT_TRUE(near_closes());
  EXPECT_TRUE(near->closed->ok()) << near->closed->message();
  EXPECT_LT(Loop::now() - began, kLastWords) << "it waited as long as for one that does not take what was written";
}

class OverTcp : public BothEnds {};

TEST_P(OverTcp, AStreamThatFinishesWaitsTenSecondsForAPeerThatTakesNothing) {
  near->start();
  const Nanos began = Loop::now();
  loop.post([&] {
    near->stream->write(std::string(kTooMuch, 'x'));
    near->stream->finish();
  });
  ASSERT_TRUE(near_closes());
  EXPECT_GE(Loop::now() - began, kLastWords);
  EXPECT_GT(near->stream->unsent(), 0u);
}

std::string name_of(const testing::TestParamInfo<Kind>& info) {
  constexpr std::array kNames{"Tcp", "Tls", "Local", "Rings"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, BothEnds, testing::Values(Kind::tcp, Kind::tls, Kind::local, Kind::rings), name_of);
INSTANTIATE_TEST_SUITE_P(All, OverSockets, testing::Values(Kind::tcp, Kind::tls, Kind::local), name_of);
INSTANTIATE_TEST_SUITE_P(All, OverPlainSockets, testing::Values(Kind::tcp, Kind::local), name_of);
INSTANTIATE_TEST_SUITE_P(All, OverTcp, testing::Values(Kind::tcp), name_of);

}  // namespace
}  // namespace farpool::net
