// SPDX-License-Identifier: Apache-2.0
#include "task/task.h"

#include <gtest/gtest.h>

#include <memory>

#include "task/scope.h"

namespace farpool::task {
namespace {

Task<int> answer() { co_return 42; }
Task<int> twice() { co_return co_await answer() + co_await answer(); }
Task<void> store(int& into) { into = co_await twice(); }
Task<std::unique_ptr<int>> moved() { co_return std::make_unique<int>(7); }
Task<void> store_moved(int& into) { into = *co_await moved(); }

TEST(Task, YieldsItsValueThroughNestedAwaits) {
  Scope scope;
  int value = 0;
  scope.spawn(store(value));
  EXPECT_EQ(value, 84);
  scope.spawn(store_moved(value));
  EXPECT_EQ(value, 7);
}

Task<void> count_down(int depth) {
  if (depth > 0) co_await count_down(depth - 1);
}

TEST(Task, DeepChainsDoNotGrowTheStackOnResume) {
  Scope scope;
  scope.spawn(count_down(1000));
  EXPECT_EQ(scope.running(), 0u);
}

Task<void> wait_for(Event& event, std::string& log, char name) {
  co_await event;
  log.push_back(name);
}
Task<void> join_then(Scope& scope, std::string& log) {
  co_await scope.join();
  log.push_back('j');
}

TEST(Scope, JoinResumesWhenAllHaveEndedAndWaitersResumeInOrder) {
  Event event;
  std::string log;
  Scope inner;
  Scope outer;
  inner.spawn(wait_for(event, log, 'a'));
  inner.spawn(wait_for(event, log, 'b'));
  outer.spawn(join_then(inner, log));
  EXPECT_EQ(inner.running(), 2u);
  EXPECT_EQ(log, "");
  event.set();
  EXPECT_EQ(log, "abj");
  EXPECT_EQ(outer.running(), 0u);
}

}  // namespace
}  // namespace farpool::task
