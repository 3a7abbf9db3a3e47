// SPDX-License-Identifier: Apache-2.0
// What a loop owes to hooks, pollers and watches that come and go while it runs.
#include "net/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

namespace farpool::net {
namespace {

constexpr Nanos kPatience = 20 * base::kSecond;

struct Hook final : TurnHook {
  explicit Hook(std::function<void()> does) : does(std::move(does)) {}
  void on_turn_end() noexcept override { does(); }
  std::function<void()> does;
};

struct Looker final : Poller {
  explicit Looker(
      std::function<bool()> looks, std::function<bool()> sleeps = [] { return true; })
      : looks(std::move(looks)), sleeps(std::move(sleeps)) {}
  bool poll() noexcept override { return looks(); }
  bool may_sleep() noexcept override { return sleeps(); }
  std::function<bool()> looks, sleeps;
};

// Stops the loop when a test takes too long.
class Limit {
 public:
  explicit Limit(Loop& loop)
      : alarm_(loop, [this, &loop] {
          passed_ = true;
          loop.stop();
        }) {
    alarm_.set(Loop::now() + kPatience);
  }
  bool passed() const { return passed_; }

 private:
  bool passed_ = false;
  Alarm alarm_;
};

// Lets the clock go on.
void moment() {
  for (const Nanos begin = Loop::now(); Loop::now() == begin;) continue;
}

TEST(Loop, CallsHooksOnceHoweverOftenTheyAreQueued) {
  Loop loop;
  const Limit limit(loop);
  int first = 0, second = 0;
  Hook a([&] { ++first; }), b([&] {
    if (++second > 3) loop.stop();
  });
  int third = 0;
  auto gone = std::make_unique<Hook>([&] { ++third; });
  loop.post([&] {
    for (Hook* hook : {&a, &b, &b, gone.get()}) loop.at_turn_end(*hook);
    gone.reset();
    loop.post([&] { loop.post([&] { loop.stop(); }); });
  });
  loop.run();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(third, 0) << "it does not run any more";
  EXPECT_FALSE(limit.passed());
}

TEST(Loop, EachTurnHasATimeOfItsOwn) {
  Loop loop;
  const Limit limit(loop);
  Nanos first = 0, between = 0, second = 0;
  loop.post([&] {
    first = loop.turn_time();
    loop.post([&] {
      moment();
      between = Loop::now();
      loop.post([&] {
        second = loop.turn_time();
        loop.stop();
      });
    });
  });
  loop.run();
  EXPECT_FALSE(limit.passed());
  EXPECT_GT(first, 0);
  EXPECT_GE(second, between);
  for (int i = 0; i < 2; ++i) {
    moment();
    const Nanos outside = Loop::now();
    EXPECT_GE(loop.turn_time(), outside) << "nobody is in a turn";
  }
}

TEST(Loop, EachLookAtThePollersHasATimeOfItsOwn) {
  Loop loop;
  const Limit limit(loop);
  int looks = 0;
  Nanos before = 0;
  Looker looker([&] {
    EXPECT_GE(loop.turn_time(), before) << "the time of the turn before";
    moment();
    before = Loop::now();
    if (++looks == 10) loop.stop();
    return true;
  });
  loop.add(looker);
  loop.run();
  loop.remove(looker);
  EXPECT_EQ(looks, 10);
  EXPECT_FALSE(limit.passed());
}

// A poller that asks for the time has done nothing: the loop may sleep, and what wakes it has a later time.
TEST(Loop, SleepsAlthoughAPollerLooksAtTheTime) {
  Loop loop;
  const Limit limit(loop);
  std::thread other;
  Nanos posted = 0, woken = 0;
  Looker looker(
      [&] {
        EXPECT_GT(loop.turn_time(), 0);
        return false;
      },
      [&] {
        if (other.joinable()) return true;
        other = std::thread([&] {
          moment();
          posted = Loop::now();
          loop.post([&] {
            woken = loop.turn_time();
            loop.stop();
          });
        });
        return true;
      });
  loop.add(looker);
  loop.run();
  loop.remove(looker);
  ASSERT_TRUE(other.joinable()) << "the loop has never slept";
  other.join();
  EXPECT_FALSE(limit.passed());
  EXPECT_GE(woken, posted);
}

// The loop asks pollers whether it may sleep only behind a look in which none did anything.
TEST(Loop, DoesNotSleepBehindAPollerThatHasDoneSomething) {
  Loop loop;
  const Limit limit(loop);
  int looks = 0, sleeps = 0;
  bool did = false;
  Looker looker([&] { return did = ++looks % 4 != 0; },
                [&] {
                  EXPECT_FALSE(did);
                  if (++sleeps == 5) loop.stop();
                  return false;
                });
  loop.add(looker);
  loop.run();
  loop.remove(looker);
  EXPECT_EQ(looks, 20);
  EXPECT_FALSE(limit.passed());
}

TEST(Loop, LooksForAsLongAsItIsToldWhereThatPays) {
  Loop loop;
  const Limit limit(loop);
  constexpr Nanos kSpin = base::kMillisecond;
  loop.set_spin(kSpin);
  int looks = 0;
  Nanos idle_since = 0, slept = 0;
  Looker looker(
      [&] {
        if (++looks <= 1000) return true;
        if (idle_since == 0) idle_since = Loop::now();
        return false;
      },
      [&] {
        slept = Loop::now();
        loop.stop();
        return false;
      });
  loop.add(looker);
  loop.run();
  loop.remove(looker);
  EXPECT_FALSE(limit.passed());
  EXPECT_GE(slept - idle_since, kSpin);
}

TEST(Loop, TakesPollersThatComeAndGoWhileItRuns) {
  Loop loop;
  const Limit limit(loop);
  int looks = 0;
  bool removed = false;
  Looker second([&] {
    EXPECT_FALSE(removed);
    ++looks;
    return false;
  });
  Looker first([&] {
    if (looks == 2 && !std::exchange(removed, true)) loop.remove(second);
    return true;
  });
  bool hooked = false;
  Hook end([&] {
    hooked = true;
    loop.stop();
  });
  // The hook is called whether or not there are pollers.
  Alarm later(loop, [&] { loop.at_turn_end(end); });
  const std::function<void()> look = [&] {
    if (!removed) return loop.post(look);
    loop.remove(first);
    later.set(Loop::now() + base::kMillisecond);
  };
  loop.post([&] {
    loop.add(first);
    loop.post([&] {
      loop.add(second);
      loop.post(look);
    });
  });
  loop.run();
  EXPECT_FALSE(limit.passed());
  EXPECT_TRUE(hooked);
  EXPECT_EQ(looks, 2);
}

// A turn with pollers ends in the next run, without them, if the loop is stopped in the middle.
TEST(Loop, ATurnThatIsCutShortEndsWhenTheLoopRunsAgain) {
  for (const bool hooked : {false, true}) {
    Loop loop;
    const Limit limit(loop);
    int ends = 0;
    Hook end([&] { ++ends; });
    Nanos before = 0, again = 0;
    bool asleep = false;
    Looker* itself = nullptr;
    Looker looker([] { return false; },
                  [&] {
                    if (std::exchange(asleep, true)) return true;
                    loop.post([&] {
                      before = loop.turn_time();
                      if (hooked) loop.at_turn_end(end);
                      loop.remove(*itself);
                      loop.stop();
                    });
                    return true;
                  });
    itself = &looker;
    loop.add(looker);
    loop.run();
    EXPECT_EQ(ends, 0);
    EXPECT_GT(before, 0);
    moment();
    const Nanos between = Loop::now();
    loop.post([&] {
      again = loop.turn_time();
      loop.post([&] { loop.stop(); });
    });
    loop.run();
    EXPECT_EQ(ends, hooked ? 1 : 0);
    EXPECT_GE(again, between) << "the time of a turn that is over";
    EXPECT_FALSE(limit.passed());
  }
}

// It looks at its pollers no more, and what comes then has a later time.
TEST(Loop, ATurnInWhichTheLastPollerGoesIsOver) {
  Loop loop;
  const Limit limit(loop);
  std::thread other;
  Nanos before = 0, posted = 0, later = 0;
  Looker* itself = nullptr;
  Looker looker([&] {
    before = loop.turn_time();
    loop.remove(*itself);
    other = std::thread([&] {
      moment();
      posted = Loop::now();
      loop.post([&] {
        later = loop.turn_time();
        loop.stop();
      });
    });
    return true;
  });
  itself = &looker;
  loop.add(looker);
  loop.run();
  ASSERT_TRUE(other.joinable());
  other.join();
  EXPECT_FALSE(limit.passed());
  EXPECT_GT(before, 0);
  EXPECT_GE(later, posted);
}

// A hook that makes work for its turn again and again does not keep the loop from what else there is, and is called
// until it makes no more.
TEST(Loop, HooksThatMakeMuchWorkAreCalledInLaterTurns) {
  for (const bool polls : {false, true}) {
    Loop loop;
    const Limit limit(loop);
    Looker nothing([] { return false; });
    if (polls) loop.add(nothing);
    int called = 0, others = 0;
    Hook early([&] {
      if (++called == 50) return loop.stop();
      loop.before_turn_end(early);
    });
    const std::function<void()> other = [&] {
      ++others;
      if (called < 50) loop.post(other);
    };
    loop.post([&] {
      loop.before_turn_end(early);
      if (polls) other();
    });
    loop.run();
    EXPECT_EQ(called, 50);
    if (polls) EXPECT_GT(others, 2);
    EXPECT_FALSE(limit.passed());
    loop.remove(nothing);
  }
}

// Both can be read at once, and each handler destroys the other's watch.
TEST(Watch, SaysNothingAfterItsEnd) {
  std::array<std::array<int, 2>, 2> pipes{};
  for (auto& pipe : pipes) {
    ASSERT_EQ(::pipe2(pipe.data(), O_NONBLOCK | O_CLOEXEC), 0);
    ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  }
  {
    Loop loop;
    const Limit limit(loop);
    int called = 0;
    std::array<std::unique_ptr<Watch>, 2> watches;
    for (std::size_t i = 0; i < 2; ++i) {
      watches[i] = std::make_unique<Watch>(loop, pipes[i][0], [&, i] {
        ++called;
        watches[1 - i].reset();
        char byte = 0;
        EXPECT_EQ(::read(pipes[i][0], &byte, 1), 1);
      });
    }
    int left = 10;
    const std::function<void()> turn = [&] { called == 1 && left-- == 0 ? loop.stop() : loop.post(turn); };
    loop.post(turn);
    loop.run();
    EXPECT_EQ(called, 1);
    EXPECT_FALSE(limit.passed());
    // The one that is left waits, and says nothing when it is destroyed.
    for (auto& watch : watches) watch.reset();
    left = 10;
    loop.post(turn);
    loop.run();
    EXPECT_EQ(called, 1);
  }
  for (const auto& pipe : pipes) {
    for (const int end : pipe) ::close(end);
  }
}

}  // namespace
}  // namespace farpool::net
