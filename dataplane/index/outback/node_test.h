// SPDX-License-Identifier: Apache-2.0
// A memory of an Outback table and a client of it, for tests: without a wire, and with processes that die after any word
// that they write.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/service.h"
#include "index/outback/build.h"
#include "index/outback/node_table.h"
#include "index/outback/verify.h"
#include "layout/lease.h"

namespace farpool::outback {

// Counts the words that a process writes, and ends it after some.
class Death final : public fabric::Hand::Watch {
 public:
  bool may_write() noexcept override {
    if (written_ == last_) dead_ = true;
    if (dead_) return false;
    ++written_;
    return true;
  }
  fabric::Hand hand() { return fabric::Hand(this); }
  std::uint64_t written() const { return written_; }
  bool dead() const { return dead_; }
  // The process dies when it is about to write another word after so many more.
  void after(std::uint64_t words) {
    last_ = words == ~0ull ? words : written_ + words;
    dead_ = false;
  }

 private:
  std::uint64_t written_ = 0, last_ = ~0ull;
  bool dead_ = false;
};

class TestEras final : public Eras {
 public:
  std::uint64_t now() const override { return now_; }
  std::uint64_t safe() const override { return safe_; }
  std::uint64_t now_ = 1, safe_ = 1;
};

struct Told {
  Status status = Status::done;
  std::uint16_t flags = 0;
  Seed seed;
  std::uint64_t version = 0, number = 0;
  std::string key, value;
  std::uint32_t value_bytes = 0;
  bool is(Status expected) const { return status == expected; }
};

class TestTable {
 public:
  static constexpr base::HashSecret kSecret{0x1234, 0x5678};
  static constexpr std::uint64_t kSession = 7, kToken = 0xabcdef;

  static Figures figures(std::uint64_t buckets, std::uint64_t memory_bytes = 512 << 10, std::uint64_t zones = 1) {
    return {.memory_bytes = memory_bytes,
            .salt = 99,
            .partitions = zones,
            .partition_buckets = buckets / zones,
            .zones = zones,
            .overflow = 4 * zones,
            .clients = 2,
            .lines = 4,
            .chunk_bytes = 32 * 1024};
  }
  explicit TestTable(const Figures& figures, Settings settings = {.secret = kSecret, .locator = {}, .growth = {}})
      : settings_(settings), words_(figures.memory_bytes / 8) {
    EXPECT_TRUE(format(memory(), figures).ok());
    start();
    attach();
  }
  // One that grows.
  TestTable(const Figures& figures, const GrowthSettings& growth) : words_(figures.memory_bytes / 8) {
    const auto cut = format(memory(), figures);
    EXPECT_TRUE(cut.ok()) << cut.status().message();
    const Locator first = build(cut->shape(0), figures.generation, figures.salt, {}).locator;
    place_.assign(first.words().begin(), first.words().end());
    place_.resize(cut->locator_bytes / 8);
    settings_ = {.secret = kSecret, .locator = std::as_writable_bytes(std::span(place_)), .growth = growth};
    start();
    attach();
  }
  // The same memory, as another process finds it.
  TestTable(const TestTable& other)
      : settings_(other.settings_), words_(other.words_), place_(other.place_), numbers_(other.numbers_) {
    settings_.locator = std::as_writable_bytes(std::span(place_));
    moves_ = other.moves_;
    if (settings_.move_lease != nullptr) {
      settings_.move_lease = reinterpret_cast<std::byte*>(&moves_[0]);
      settings_.move_finished = reinterpret_cast<std::byte*>(&moves_[1]);
    }
    start();
    attach();
  }
  TestTable& operator=(const TestTable&) = delete;
  // The session holds the lease for moves of a memory node, from the next process on.
  void lease_to(std::uint64_t session) {
    moves_[0] = session == 0 ? 0 : layout::LeaseWord::held_by(moves_[0], session);
    settings_.move_lease = reinterpret_cast<std::byte*>(&moves_[0]);
    settings_.move_finished = reinterpret_cast<std::byte*>(&moves_[1]);
  }
  std::uint64_t move_finished() const { return moves_[1]; }
  base::MutableBytes memory() { return std::as_writable_bytes(std::span(words_)); }
  NodeTable& table() { return *table_; }
  Death& death() { return death_; }

  // A new process takes the memory over. Its own words count, too: false, if it died of that.
  bool start() {
    table_.reset();
    auto opened = NodeTable::open(memory(), settings_, death_.hand());
    if (opened.ok()) table_ = std::move(*opened);
    if (!opened.ok() && !death_.dead()) ADD_FAILURE() << opened.status().message();
    return opened.ok() && !death_.dead();
  }
  void attach(std::uint64_t session = kSession, std::uint64_t token = kToken) {
    const Told told = ask({.op = Op::attach, .argument = token}, session);
    EXPECT_EQ(told.status, Status::done);
    client_ = static_cast<std::uint16_t>(told.number);
  }

  // The table's locator, as a client that has just read it knows it.
  const Locator& locator() {
    const Stage stage = table_->stage();
    if (!locator_ || locator_->header().generation != stage.generation) {
      const base::Bytes all = stage.place == 0 ? base::Bytes(settings_.locator)
                                               : memory().subspan(table_->cut().locator, table_->cut().locator_bytes);
      std::vector<std::uint64_t> words(LocatorHeader::parse(all).value().bytes() / 8);
      std::memcpy(words.data(), all.data(), words.size() * 8);
      locator_.emplace(Locator::parse(std::move(words)).value());
    }
    return *locator_;
  }
  // A bucket that a key may lie in: the same one for the same key, until there is another locator.
  std::uint32_t bucket_of(std::string_view key) {
    const Figures& f = table_->cut().figures;
    const std::uint64_t hash = hash_of(kSecret, f.salt, base::bytes_of(key));
    if (!place_.empty()) return locator().find(hash).bucket;
    const Candidates at = Candidates::of(hash, {.partitions = static_cast<std::uint32_t>(f.partitions),
                                                .buckets = static_cast<std::uint32_t>(f.partition_buckets)});
    return at.partition * static_cast<std::uint32_t>(f.partition_buckets) + at.buckets[hash & 1];
  }
  Request request(Op op, std::string_view key, std::string_view value = {}) {
    Request request{.op = op,
                    .client = client_,
                    .generation = table_->stage().generation,
                    .key = base::bytes_of(key),
                    .value = base::bytes_of(value)};
    if (has_key(op)) request.place = bucket_of(key);
    return request;
  }
  // Gives the request the next number of a line.
  Request numbered(Request request, std::uint32_t line = 0) {
    request.request_id = fabric::RequestId{line, ++numbers_[line]}.word();
    return request;
  }
  Told ask(const Request& request, std::uint64_t session = kSession, std::size_t room = 8192) {
    std::vector<std::byte> sent(layout::kv_request_bytes(request.key.size(), request.value.size())), reply(room);
    std::size_t bytes = 0;
    Told told;
    told.status = put_kv_request(request, sent, bytes);
    if (told.status != Status::done) return told;
    sent.resize(bytes);
    Request got;
    EXPECT_EQ(get_kv_request(sent, got), Status::done);
    const auto zone = table_->zone_of(got);
    if (zone) EXPECT_TRUE(table_->zone(*zone).try_lock());
    bytes = table_->run(got, session, death_.hand(), reply);
    const bool grows = zone && table_->is_turn(got, *zone);
    if (zone) table_->zone(*zone).unlock();
    if (grows) table_->grow(got, death_.hand(), doors_);
    Reply says;
    EXPECT_TRUE(get_reply(base::Bytes(reply).first(bytes), says));
    return {.status = says.status,
            .flags = says.flags,
            .seed = seed_of(says.hint),
            .version = says.version,
            .number = says.number,
            .key = std::string(base::text_of(says.key)),
            .value = std::string(base::text_of(says.value)),
            .value_bytes = says.value_bytes};
  }
  Told change(Op op, std::string_view key, std::string_view value = {}, std::uint32_t line = 0) {
    return ask(numbered(request(op, key, value), line));
  }
  std::optional<std::string> value_of(std::string_view key) {
    Told told = ask(request(Op::find, key));
    if ((told.flags & Reply::kElsewhere) != 0) told = ask(request(Op::find, key), kSession, kMaxKvRequest);
    EXPECT_TRUE(told.is(Status::done) || told.is(Status::absent)) << text_of(told.status);
    return told.is(Status::done) ? std::optional(told.value) : std::nullopt;
  }

  // Takes a step of growth as a change does. Returns whether there is more to do.
  bool grow() {
    table_->grow({.op = Op::put}, death_.hand(), doors_);
    return table_->growth().building() || table_->stage().moving;
  }

  using Model = std::map<std::string, std::string, std::less<>>;
  // Everything that the memory has, if nothing is wrong with it.
  std::optional<Model> content(std::string& wrong) {
    Model found;
    const auto cut = parse(memory());
    if (!cut.ok()) {
      wrong = cut.status().message();
      return std::nullopt;
    }
    const auto visit = [&](const Seen& seen) {
      if (seen.by == Seen::By::line) return;
      found.emplace(base::text_of(seen.block.key), base::text_of(seen.block.value));
    };
    const index::Report report = verify(*cut, memory(), kSecret, {.visit = visit, .progress = {}});
    if (report.defect_count() > 0) {
      wrong = report.defects.front().what;
      return std::nullopt;
    }
    if (report.keys != found.size()) wrong = "a key is there twice";
    return found;
  }

 private:
  Settings settings_;
  class TestDoors final : public Growth::Doors {
   public:
    explicit TestDoors(TestTable& table) : table_(table) {}
    bool enter(std::uint64_t zone) override { return table_.table_->zone(zone).try_lock(); }
    void leave(std::uint64_t zone) override { table_.table_->zone(zone).unlock(); }

   private:
    TestTable& table_;
  };
  std::vector<std::uint64_t> words_, place_;  // the latter if the table grows
  std::array<std::uint64_t, 2> moves_{};      // lease, and the last move that is finished
  std::optional<Locator> locator_;
  TestDoors doors_{*this};
  Death death_;
  std::unique_ptr<NodeTable> table_;
  std::uint16_t client_ = 0;
  std::map<std::uint32_t, std::uint64_t> numbers_;
};

}  // namespace farpool::outback
