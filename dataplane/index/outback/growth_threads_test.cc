// SPDX-License-Identifier: Apache-2.0
// A table that grows under several real threads. Each reads the locator as a client does, while others write the next
// one, and changes keys that nobody else changes: so it knows what every answer must be.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "index/outback/node_test.h"
#include "index/outback/threads_test.h"

namespace farpool::outback {
namespace {

constexpr std::uint64_t kThreads = 4, kRounds = 1500, kDoublings = 5;
constexpr std::size_t kRoom = 4096;

class GrowingNode {
 public:
  explicit GrowingNode(const Figures& figures) : words_(figures.memory_bytes / 8) {
    const auto cut = format(memory(), figures);
    FARPOOL_CHECK(cut.ok());
    const Locator first = build(cut->shape(0), figures.generation, figures.salt, {}).locator;
    place_.assign(first.words().begin(), first.words().end());
    place_.resize(cut->locator_bytes / 8);
    start();
  }
  // Another process takes the memory over.
  void start() {
    service_.reset();
    table_.reset();
    const GrowthSettings growth{.step = 2, .most_step = 64};
    auto opened = NodeTable::open(
        memory(),
        {.secret = TestTable::kSecret, .locator = std::as_writable_bytes(std::span(place_)), .growth = growth},
        fabric::Hand());
    FARPOOL_CHECK(opened.ok());
    table_ = std::move(*opened);
    service_ = std::make_unique<NodeService>(*table_);
  }
  base::MutableBytes memory() { return std::as_writable_bytes(std::span(words_)); }
  NodeTable& table() { return *table_; }
  NodeService& service() { return *service_; }

  // Reads the newest locator one-sidedly, as a client does.
  std::shared_ptr<Locator> read_locator() {
    for (;; std::this_thread::yield()) {
      std::uint64_t* newest = nullptr;
      LocatorHeader header;
      for (std::uint64_t* place : {place_.data(), words_.data() + table_->cut().locator / 8}) {
        const auto found = header_at(place);
        if (!found.ok() || (newest != nullptr && found->generation <= header.generation)) continue;
        newest = place;
        header = *found;
      }
      if (newest == nullptr) continue;
      auto locator = Locator::parse(words_at(newest, header.bytes() / 8));
      const auto again = header_at(newest);
      if (locator.ok() && again.ok() && *again == header && locator->header() == header) {
        return std::make_shared<Locator>(std::move(*locator));
      }
    }
  }

 private:
  static std::vector<std::uint64_t> words_at(std::uint64_t* at, std::size_t count) {
    std::vector<std::uint64_t> words(count);
    for (std::size_t i = 0; i < count; ++i) words[i] = std::atomic_ref(at[i]).load(std::memory_order_acquire);
    return words;
  }
  static base::Result<LocatorHeader> header_at(std::uint64_t* at) {
    const std::vector<std::uint64_t> words = words_at(at, LocatorHeader::kWords);
    return LocatorHeader::parse(std::as_bytes(std::span(words)));
  }
  std::vector<std::uint64_t> words_, place_;
  std::unique_ptr<NodeTable> table_;
  std::unique_ptr<NodeService> service_;
};

// A client that is a thread.
class Caller {
 public:
  Caller(GrowingNode& node, std::uint64_t number)
      : node_(node), number_(number), locator_(node.read_locator()), reply_(kRoom) {
    Reply told;
    do {
      told = post({.op = Op::attach, .argument = number + 1});
    } while (told.status == Status::running);
    if (told.status != Status::done) wrong("cannot attach");
    client_ = static_cast<std::uint16_t>(told.number);
  }
  const std::string& wrong() const { return wrong_; }
  void wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  std::uint64_t stale() const { return stale_; }

  Reply ask(Request request) {
    const bool change = layout::changes(request.op);
    for (;;) {
      if (change) request.request_id = fabric::RequestId{0, ++requests_}.word();
      request.client = client_;
      Reply told;
      do {
        request.generation = locator_->header().generation;
        if (has_key(request.op)) request.place = spot(base::text_of(request.key)).bucket;
        told = post(request);
      } while (told.status == Status::running);
      if (told.status != Status::stale) return told;
      ++stale_;
      renew();
    }
  }
  Reply ask(Op op, std::string_view key, std::string_view value = {}, std::uint64_t argument = 0) {
    return ask({.op = op, .argument = argument, .key = base::bytes_of(key), .value = base::bytes_of(value)});
  }

  // Looks a key up as a client does: it may conclude from one slot that the key is absent.
  std::optional<std::string> look(std::string_view key) {
    for (;;) {
      const std::uint64_t hash = hash_of(TestTable::kSecret, locator_->header().salt, base::bytes_of(key));
      const Spot at = locator_->find(hash);
      Request get{.op = Op::get, .place = at.bucket, .generation = locator_->header().generation};
      get.argument = at.slot;
      const Reply told = post(get);
      if (told.status == Status::running) continue;
      if (told.status == Status::stale) {
        ++stale_;
        renew();
        continue;
      }
      const bool empty = (told.flags & Reply::kEmpty) != 0;
      if (!empty && std::ranges::equal(told.key, base::bytes_of(key))) return std::string(base::text_of(told.value));
      if ((told.flags & kCached) == 0 && slot_of(hash, seed_of(told.hint).value) == at.slot) return std::nullopt;
      const Reply found = ask(Op::find, key);
      if (found.status == Status::done) return std::string(base::text_of(found.value));
      if (found.status != Status::absent) wrong(std::string("a find is told: ") + text_of(found.status));
      return std::nullopt;
    }
  }

 private:
  Spot spot(std::string_view key) const {
    return locator_->find(hash_of(TestTable::kSecret, locator_->header().salt, base::bytes_of(key)));
  }
  void renew() {
    const std::uint64_t old = locator_->header().generation;
    while (locator_->header().generation == old) locator_ = node_.read_locator();
  }
  Reply post(const Request& request) {
    std::vector<std::byte> sent(layout::kv_request_bytes(request.key.size(), request.value.size()));
    std::size_t bytes = 0;
    if (put_kv_request(request, sent, bytes) != Status::done) wrong("a request cannot be written");
    ThreadCall call(number_ + 1, base::Bytes(sent).first(bytes), reply_, desk_);
    Reply got;
    if (!get_reply(base::Bytes(reply_).first(call.carry_out(node_.service())), got)) wrong("a reply is none");
    return got;
  }

  GrowingNode& node_;
  const std::uint64_t number_;
  const std::shared_ptr<ThreadCall::AnswerDesk> desk_ = std::make_shared<ThreadCall::AnswerDesk>();
  std::shared_ptr<Locator> locator_;
  std::vector<std::byte> reply_;
  std::uint16_t client_ = 0;
  std::uint64_t requests_ = 0, stale_ = 0;
  std::string wrong_;
};

using Model = std::map<std::string, std::string>;

// Changes keys of its own, and a sum that is everybody's, and looks up what it has changed.
void change_keys(Caller& caller, std::uint64_t thread, Model& model) {
  base::Random random(thread + 1);
  const auto expect = [&](const Reply& told, Status status, const char* what) {
    if (told.status != status) caller.wrong(std::string(what) + " is told: " + text_of(told.status));
  };
  for (std::uint64_t round = 0; round < kRounds && caller.wrong().empty(); ++round) {
    const std::string fresh = std::to_string(thread) + "/" + std::to_string(round);
    const std::string value = "v" + std::to_string(round) + std::string(round % 4 == 0 ? 90 : 0, 'x');
    expect(caller.ask(Op::insert, fresh, value), Status::done, "an insert of a new key");
    model[fresh] = value;
    const std::string other = std::to_string(thread) + "/" + std::to_string(random.below(round + 2));
    const auto known = model.find(other);
    const bool there = known != model.end();
    switch (random.below(5)) {
      case 0:
        expect(caller.ask(Op::remove, other), there ? Status::done : Status::absent, "a remove");
        if (there) model.erase(known);
        break;
      case 1:
        expect(caller.ask(Op::update, other, value), there ? Status::done : Status::absent, "an update");
        if (there) known->second = value;
        break;
      case 2:
        expect(caller.ask(Op::add, "sum", {}, 1), Status::done, "an add");
        break;
      default: {
        const auto found = caller.look(other);
        if (found != (there ? std::optional(known->second) : std::nullopt)) {
          caller.wrong(std::string("a lookup of ") + other + " finds " + found.value_or("nothing") + ", with " +
                       (there ? known->second : "nothing") + " there");
        }
      }
    }
  }
}

// Scans again and again: keys that stay are in each scan.
void scan_keys(Caller& caller, const std::set<std::string>& stay, const std::atomic<bool>& over, std::uint64_t& scans) {
  while (!over.load() || scans < 3) {
    std::set<std::string> found;
    std::uint64_t position = 0;
    do {
      const Reply told = caller.ask({.op = Op::scan, .place = position, .argument = 20});
      if (told.status != Status::done) return caller.wrong(std::string("a scan is told: ") + text_of(told.status));
      base::Bytes rest = told.value;
      bool bad = false;
      for (ScanKey key; next_scan_key(rest, key, bad);) found.insert(std::string(base::text_of(key.key)));
      if (bad || (told.number != 0 && told.number <= position)) return caller.wrong("a scan does not go on");
      position = told.number;
    } while (position != 0);
    for (const std::string& key : stay) {
      if (!found.contains(key)) return caller.wrong("scan " + std::to_string(scans) + " misses " + key);
    }
    ++scans;
  }
}

class GrowthThreads : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(GrowthThreads, LoseNothingAndRefuseNothingWhileTheTableRebuildsAndDoubles) {
  const std::uint64_t zones = GetParam();
  Figures figures = TestTable::figures(16, 4 << 20, zones);
  figures.partitions = 4;
  figures.partition_buckets = 8;
  figures.overflow = (4 * 8) << kDoublings;
  figures.doublings = kDoublings;
  figures.clients = kThreads + 2;
  GrowingNode node(figures);
  std::vector<std::unique_ptr<Caller>> callers;
  for (std::uint64_t i = 0; i <= kThreads; ++i) callers.push_back(std::make_unique<Caller>(node, i));
  std::set<std::string> stay;
  for (int i = 0; i < 50; ++i) {
    stay.insert("stays" + std::to_string(i));
    ASSERT_EQ(callers[0]->ask(Op::insert, "stays" + std::to_string(i), "v").status, Status::done);
  }
  ASSERT_EQ(callers[0]->ask(Op::add, "sum", {}, 0).status, Status::done);
  std::vector<Model> models(kThreads);
  std::atomic<bool> over{false};
  std::uint64_t scans = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { change_keys(*callers[i], i, models[i]); });
  }
  std::thread scanner([&] { scan_keys(*callers[kThreads], stay, over, scans); });
  for (std::thread& thread : threads) thread.join();
  over.store(true);
  scanner.join();
  std::uint64_t keys = stay.size() + 1, stale = 0;
  for (const auto& caller : callers) {
    EXPECT_EQ(caller->wrong(), "");
    stale += caller->stale();
  }
  EXPECT_GT(stale, kThreads) << "clients had old locators";
  const Growth::Figures grown = node.table().growth().figures();
  EXPECT_EQ(grown.doubled, kDoublings);
  EXPECT_EQ(node.table().stage().level, kDoublings);
  for (int life = 1; life <= 2; ++life) {
    const auto cut = parse(node.memory());
    EXPECT_EQ(verify(*cut, node.memory(), TestTable::kSecret).defect_count(), 0u);
    keys = stay.size() + 1;
    Caller reader(node, kThreads + 1);
    for (const Model& model : models) {
      keys += model.size();
      for (const auto& [key, value] : model) ASSERT_EQ(reader.look(key), value) << key << " in life " << life;
    }
    EXPECT_EQ(node.table().totals().keys, keys);
    node.start();
  }
}

INSTANTIATE_TEST_SUITE_P(Zones, GrowthThreads, ::testing::Values(1u, 4u));

}  // namespace
}  // namespace farpool::outback
