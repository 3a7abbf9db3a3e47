// SPDX-License-Identifier: Apache-2.0
// A memory node and a client of a third protocol, which no room but its own knows of.
#include "protocols/toy/toy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "client/pool.h"
#include "fabric/sim/network.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"
#include "task/scope.h"

namespace farpool::toy {
namespace {

using base::Result;
using base::Status;
using task::Task;
using ::testing::HasSubstr;

constexpr std::uint64_t kMemory = 4 << 20;
constexpr char kUid[] = "pool-of-toys";
constexpr char kEndpoint[] = "node-0:7400";

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class Toys : public ::testing::Test {
 protected:
  Toys() : network_(fabric::sim::Options{.seed = 7, .calls_in_flight = 0}), wire_(network_.add_node(kEndpoint)) {
    needs() = {};
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, kMemory)));
    std::memset(memory_.get(), 0, kMemory);
  }
  ~Toys() override {
    if (pool_) run(close());
  }

  // Another life of the memory node, over what the one before left.
  Status serve() {
    if (node_) wire_.stop();
    node_.reset();
    auto node = node::MemoryNode::create(
        {.name = "mn-0",
         .pool_uid = kUid,
         .endpoint = kEndpoint,
         .version = "test",
         .geometry = {.table_percent = 10, .max_sessions = 8, .slots_per_session = 4, .protocol = kNumber},
         .lease = 2 * base::kSecond,
         .failure_timeout = 40 * base::kMillisecond},
        {memory_.get(), kMemory}, wire_);
    if (!node.ok()) return node.status();
    node_ = std::move(*node);
    wire_.serve(*node_);
    const auto published = node_->stand_alone();
    EXPECT_EQ(published.verdict, node::MemoryNode::Verdict::adopted) << published.message;
    return {};
  }
  client::Pool& pool() {
    if (!pool_) {
      fabric::sim::SimPort& port =
          network_.add_client({.pool_uid = kUid, .role = "client", .name = "c", .authenticated = true});
      pool_ = std::make_unique<client::Pool>(
          port, client::Pool::Options{.pool_uid = kUid, .client_name = "c", .bootstrap = {kEndpoint}});
      pool_->start();
    }
    return *pool_;
  }
  void run(Task<void> task) {
    scope_.spawn(std::move(task));
    ASSERT_TRUE(network_.run_until([this] { return scope_.running() == 0; }, network_.now() + 60 * base::kSecond));
  }
  Task<void> close() { co_await pool_->close(network_.now() + 5 * base::kSecond); }
  Task<void> put(std::string key, std::string value, Status& into) { into = co_await pool().put(key, value); }
  Task<void> get(std::string key, Result<std::optional<std::string>>& into) { into = co_await pool().get(key); }

  fabric::sim::Network network_;
  fabric::sim::SimResponder& wire_;
  std::unique_ptr<std::byte, FreeMemory> memory_;
  std::unique_ptr<node::MemoryNode> node_;
  std::unique_ptr<client::Pool> pool_;
  task::Scope scope_;
};

TEST_F(Toys, AThirdProtocolServesAPool) {
  const Status served = serve();
  ASSERT_TRUE(served.ok()) << served.message();
  EXPECT_EQ(node_->geometry().shape().name, "toy");
  Status done;
  run(put("k", "seven", done));
  EXPECT_TRUE(done.ok()) << done.message();
  Result<std::optional<std::string>> got = std::optional<std::string>();
  run(get("k", got));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->value_or("nothing"), "seven");
  run(put("k", "too long", done));
  EXPECT_EQ(done.code(), base::Code::too_large);
  // Another life takes the memory up.
  const Status again = serve();
  ASSERT_TRUE(again.ok()) << again.message();
  run(get("k", got));
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->value_or("nothing"), "seven");
}

TEST_F(Toys, AMemoryNodeDoesNotStartOnAWireThatCannotServeItsProtocol) {
  needs() = {.calls_in_flight = 4, .call_bytes = 4096};
  const Status refused = serve();
  EXPECT_EQ(refused.code(), base::Code::invalid_argument);
  EXPECT_THAT(refused.message(), HasSubstr("cannot serve the protocol toy"));
  EXPECT_THAT(refused.message(), HasSubstr("CALLs for data in flight on a lane of at least 4 (it has none)"));
  network_.options().calls_in_flight = 4;
  EXPECT_TRUE(serve().ok());
}

TEST_F(Toys, AClientOpensNoPoolOnAWireThatCannotServeItsProtocol) {
  ASSERT_TRUE(serve().ok());
  needs() = {.calls_in_flight = 4};
  Status done;
  run(put("k", "seven", done));
  EXPECT_FALSE(done.ok());
  EXPECT_THAT(done.message(), HasSubstr("cannot serve the protocol toy"));
  // It says goodbye to the sessions in which it learns this.
  EXPECT_TRUE(network_.run_until([this] { return node_->stats().sessions == 0; }, network_.now() + base::kSecond));
  EXPECT_EQ(node_->stats().sessions_fenced, 0u);
}

}  // namespace
}  // namespace farpool::toy
