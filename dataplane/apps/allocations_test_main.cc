// SPDX-License-Identifier: Apache-2.0
// GET, SET and DEL allocate nothing once a compute shard is warm: from the bytes of a command to the bytes of its
// reply, over tcp and over rings, with both protocols. A program of its own, because it counts every call of operator
// new on the shard's thread.
//
// Under the address sanitizer frames do not come from their pool, but from malloc, which is not counted here. Everything
// else is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "client/pool.h"
#include "fabric/session_port/test_loop.h"
#include "fabric/tcp/port.h"
#include "fabric/tcp/responder.h"
#include "front/resp/conversation.h"
#include "node/memory.h"
#include "node/memory_node.h"
#include "protocols/protocols.h"

namespace {
thread_local std::uint64_t allocations = 0;
void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace farpool::apps {
namespace {

using base::kSecond;
using base::Nanos;
using fabric::session_port::LoopThread;
using fabric::tcp::TcpPort;
using fabric::tcp::TcpResponder;

constexpr Nanos kLong = 20 * kSecond;  // sanitizers are slow: nobody is taken for dead
constexpr int kPipeline = 16, kRounds = 30;

// One memory node on a thread of its own.
class Node {
 public:
  Node(layout::Protocol protocol, const std::string& directory)
      : memory_(std::move(*node::Memory::anonymous(64 << 20))) {
    thread_.on([&] {
      responder_ = std::make_unique<TcpResponder>(
          thread_.loop,
          fabric::session_port::Options{.listen = "127.0.0.1:0", .executors = 1, .handshake_deadline = kLong});
      node::MemoryNode::Options options;
      options.name = "memory-0";
      options.pool_uid = "pool";
      options.geometry.protocol = protocol;
      options.lease = 2 * kLong;
      options.failure_timeout = kLong;
      options.require_authentication = false;
      options.log = [](bool, const std::string&) {};
      options.on_change = [] {};
      auto created = node::MemoryNode::create(std::move(options), memory_.span(), *responder_);
      ASSERT_TRUE(created.ok()) << created.status().message();
      node_ = std::move(*created);
      const base::Status status = responder_->serve(*node_);
      ASSERT_TRUE(status.ok()) << status.message();
      if (!directory.empty()) {
        const base::Status rings = responder_->serve_rings(fabric::tcp::rings_address(directory, node_->incarnation()));
        ASSERT_TRUE(rings.ok()) << rings.message();
      }
      v1alpha1::ShardMap map;
      map.set_pool_uid("pool");
      map.set_epoch(1);
      *map.add_nodes() = node_->entry();
      map.mutable_nodes(0)->set_endpoint(responder_->address());
      map.mutable_nodes(0)->set_state(v1alpha1::MemoryNodeEntry::STATE_SERVING);
      map.add_tables();
      map.add_directory(0);
      const auto published = node_->publish(map, {11, 22});
      ASSERT_EQ(published.verdict, node::MemoryNode::Verdict::adopted) << published.message;
    });
  }
  ~Node() {
    thread_.on([&] {
      responder_.reset();
      node_.reset();
    });
  }
  const std::string& address() const { return responder_->address(); }
  std::uint64_t ring_lanes() const { return responder_->stats().ring_lanes; }

 private:
  node::Memory memory_;
  LoopThread thread_;
  std::unique_ptr<TcpResponder> responder_;
  std::unique_ptr<node::MemoryNode> node_;
};

// A connection's conversation with a pool, on the shard's thread.
class Shard {
 public:
  Shard(const std::string& address, const std::string& directory) {
    thread_.on([&] {
      port_ = std::make_unique<TcpPort>(thread_.loop, nullptr, directory);
      pool_ = std::make_unique<client::Pool>(*port_, client::Pool::Options{.pool_uid = "pool",
                                                                           .client_name = "shard",
                                                                           .bootstrap = {address},
                                                                           .operation_deadline = kLong,
                                                                           .connect_deadline = kLong,
                                                                           .on_change = [](const auto&) {},
                                                                           .log = [](bool, const std::string&) {}});
      pool_->start();
      service_.emplace(
          front::resp::Service{.kv = *pool_, .settings = settings_, .counters = counters_, .loop = &thread_.loop});
      conversation_ = std::make_unique<front::resp::Conversation>(
          *service_, front::resp::Endpoints{1, "client", "shard"}, [this] { progressed(); });
    });
  }
  ~Shard() {
    thread_.on([&] { conversation_.reset(); });
    std::promise<void> closed;
    thread_.loop.post([&] { scope_.spawn(close(closed)); });
    closed.get_future().get();
    thread_.on([&] {
      pool_.reset();
      port_.reset();
    });
  }

  // Commands that are said at once, and their replies.
  struct Batch {
    const char* name;
    std::string commands, expected;
    std::uint64_t least = ~0ull;  // allocations that it took, when it was said best
  };
  // Says the batches in turn, so many times, each when the one before has been answered. Whatever the loop gets from
  // another thread meanwhile would spoil what asio keeps for reuse, so the thread is left alone.
  void say(std::vector<Batch>& batches, int rounds) {
    std::promise<void> said;
    thread_.loop.post([&] {
      batches_ = &batches;
      left_ = rounds * static_cast<int>(batches.size());
      over_ = &said;
      next();
      progressed();
    });
    said.get_future().get();
  }

 private:
  Batch& batch() { return (*batches_)[static_cast<std::size_t>(said_) % batches_->size()]; }
  void next() {
    commands_ = batch().commands;
    replies_.clear();
    before_ = allocations;
  }
  void progressed() {
    while (over_ != nullptr) {
      conversation_->receive(commands_);
      front::resp::Backlog& backlog = conversation_->backlog();
      while (!backlog.empty()) {
        const std::size_t bytes = backlog.first().size();
        replies_.append(backlog.first());
        backlog.consume(bytes);
      }
      if (!commands_.empty() || !conversation_->idle() || replies_.size() < batch().expected.size()) return;
      // Now and then the heap asks for a segment, and a tick is due: what the commands take is what the best time took.
      batch().least = std::min(batch().least, allocations - before_);
      EXPECT_EQ(replies_, batch().expected) << batch().name;
      ++said_;
      if (--left_ == 0) return std::exchange(over_, nullptr)->set_value();
      next();
    }
  }
  task::Task<void> close(std::promise<void>& closed) {
    co_await pool_->close(port_->now() + kLong);
    closed.set_value();
  }

  LoopThread thread_;
  task::Scope scope_;
  std::unique_ptr<TcpPort> port_;
  std::unique_ptr<client::Pool> pool_;
  front::resp::Settings settings_;
  front::resp::Counters counters_;
  std::optional<front::resp::Service> service_;
  std::unique_ptr<front::resp::Conversation> conversation_;
  std::vector<Batch>* batches_ = nullptr;
  int said_ = 0, left_ = 0;
  std::promise<void>* over_ = nullptr;
  std::string_view commands_;
  std::string replies_;
  std::uint64_t before_ = 0;
};

std::string command(std::initializer_list<std::string_view> words) {
  std::string bytes = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string_view word : words)
    bytes += "$" + std::to_string(word.size()) + "\r\n" + std::string(word) + "\r\n";
  return bytes;
}

class Allocations : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Allocations, NoneIsLeftOnceItIsWarm) {
  const std::string& name = std::get<0>(GetParam());
  const bool rings = std::get<1>(GetParam());
  const auto all = protocols::all();
  const auto found = std::find_if(all.begin(), all.end(), [&name](const auto* one) { return one->name() == name; });
  ASSERT_NE(found, all.end());
  const layout::Protocol protocol = (*found)->number();
  std::string directory;
  if (rings) {
    directory = (std::filesystem::temp_directory_path() / "farpool-allocations-XXXXXX").string();
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  }
  {
    Node node(protocol, directory);
    Shard shard(node.address(), directory);
    const std::string value(64, 'v');
    std::vector<Shard::Batch> batches{
        {"SET (insert)", {}, {}}, {"GET", {}, {}}, {"SET (update)", {}, {}}, {"DEL", {}, {}}};
    for (int i = 0; i < kPipeline; ++i) {
      const std::string key = "key:" + std::to_string(i) + ":abcdef";
      batches[0].commands += command({"SET", key, value});
      batches[1].commands += command({"GET", key});
      batches[2].commands += command({"SET", key, value});
      batches[3].commands += command({"DEL", key});
      batches[0].expected += "+OK\r\n";
      batches[1].expected += "$64\r\n" + value + "\r\n";
      batches[2].expected += "+OK\r\n";
      batches[3].expected += ":1\r\n";
    }
    shard.say(batches, kRounds);
    for (Shard::Batch& batch : batches) batch.least = ~0ull;
    shard.say(batches, kRounds);
    for (const Shard::Batch& batch : batches) EXPECT_EQ(batch.least, 0u) << "for " << kPipeline << " x " << batch.name;
    if (rings) EXPECT_GT(node.ring_lanes(), 0u);
  }
  if (rings) std::filesystem::remove_all(directory);
}

std::vector<std::string> protocol_names() {
  std::vector<std::string> names;
  for (const index::Protocol* protocol : protocols::all()) names.emplace_back(protocol->name());
  return names;
}
std::string name_of(const ::testing::TestParamInfo<Allocations::ParamType>& of) {
  return std::get<0>(of.param) + (std::get<1>(of.param) ? "Shm" : "Tcp");
}
INSTANTIATE_TEST_SUITE_P(Wires, Allocations,
                         ::testing::Combine(::testing::ValuesIn(protocol_names()), ::testing::Bool()), name_of);

}  // namespace
}  // namespace farpool::apps
