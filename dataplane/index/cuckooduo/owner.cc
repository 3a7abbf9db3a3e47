// SPDX-License-Identifier: Apache-2.0
#include "index/cuckooduo/owner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "index/cuckooduo/bench.h"
#include "index/cuckooduo/pair.h"
#include "index/cuckooduo/rebuild.h"
#include "index/operation.h"
#include "index/rewrite.h"
#include "layout/directory.h"
#include "layout/extent.h"
#include "layout/regions.h"
#include "session/trips.h"

namespace farpool::cuckooduo {

using base::Bytes;
using base::Code;
using base::MutableBytes;
using base::Nanos;
using base::Result;
using base::Status;
using fabric::Cost;
using fabric::Fate;
using fabric::Op;
using index::Chain;
using task::Task;

Owner::Owner(session::Session& session, heap::Heap& heap, const Site& site)
    : session_(session), heap_(heap), site_(site), ended_(session.port()) {}
Owner::~Owner() { FARPOOL_CHECK(standing_ == Standing::none); }

Status Owner::not_owner() const {
  if (!session_.alive()) {
    return session::gone(session_, Code::unavailable, "the table's owner has lost its session; nothing was done");
  }
  return {Code::unavailable,
          "this client is not the owner of table " + std::to_string(site_.table) + "; nothing was done"};
}

// --- Becoming the owner

// The keys of pairs by pointer, by their blocks: of those alone that share their hash with another pair.
struct Owner::Keys {
  std::map<std::uint64_t, std::string> by_block;

  Bytes of(const Slot& slot) const {
    return slot.state == SlotState::pointer ? base::bytes_of(by_block.at(slot.block)) : slot.key;
  }
  bool same(const Slot& a, const Slot& b) const {
    if (a.state == SlotState::pointer && b.state == SlotState::pointer && a.block == b.block) return true;
    const Bytes one = of(a), other = of(b);
    return std::equal(one.begin(), one.end(), other.begin(), other.end());
  }
};

Task<Status> Owner::take(Nanos deadline, Nanos lease_by) {
  FARPOOL_CHECK(standing_ == Standing::none);
  Status status = check_site(site_, session_.region_bytes(layout::kTable));
  if (!status.ok()) co_return status;
  Cost cost;
  standing_ = Standing::taking;
  tenure_.emplace(session_);
  status = co_await tenure_->take(layout::table_lease(site_.table), std::min(deadline, lease_by));
  if (status.ok()) status = co_await open(deadline, cost);
  if (status.ok()) status = tenure_->trouble();
  if (status.ok()) {
    standing_ = Standing::owner;
    heap_.set_references(*this);
    co_return status;
  }
  co_await tenure_->give_back(now() + session_.grant().failure_timeout);
  tenure_.reset();
  forget();
  co_return status;
}

Task<Status> Owner::open(Nanos deadline, Cost& cost) {
  std::vector<std::byte> vault(site_.shape.vault_bytes());
  if (Status status = co_await read_vault(vault, deadline, cost); !status.ok()) co_return status;
  if (Status status = co_await settle_records(vault, deadline, cost); !status.ok()) co_return status;
  Keys keys;
  if (Status status = co_await read_keys(vault, keys, deadline, cost); !status.ok()) co_return status;
  Result<Rebuilt> rebuilt = rebuild(site_.shape, site_.salt, site_.secret, vault,
                                    [&keys](const Slot& a, const Slot& b) { return keys.same(a, b); });
  if (!rebuilt.ok()) co_return rebuilt.status();
  counts_.rebuilt = site_.shape.end();
  counts_.repaired = rebuilt->repairs.size();
  if (Status status = co_await repair(vault, std::move(rebuilt->repairs), deadline, cost); !status.ok()) {
    co_return status;
  }
  index_.emplace(std::move(rebuilt->index));
  planner_.emplace(*index_, rebuilt->next_version);
  co_return co_await name_owner(session_.grant().client_incarnation, deadline, cost);
}

Task<Status> Owner::read_vault(MutableBytes into, Nanos deadline, Cost& cost) {
  const std::uint64_t most = std::min<std::uint64_t>(into.size(), fabric::kMaxChainBytes);
  const fabric::Buffer piece = session_.port().buffer(most);
  for (std::uint64_t at = 0; at < into.size(); at += most) {
    if (now() >= deadline) {
      co_return Status(Code::timed_out, "the deadline passed when " + std::to_string(at) + " of " +
                                            std::to_string(into.size()) + " bytes of the vault had been read");
    }
    if (!tenure_->trouble().ok()) co_return tenure_->trouble();
    const std::uint64_t bytes = std::min<std::uint64_t>(most, into.size() - at);
    const fabric::Outcome outcome =
        co_await session::read_long(session_, layout::kTable, at, piece.first(bytes), deadline, cost);
    if (outcome.fate != Fate::done) {
      co_return session::gone(session_, Code::unavailable, "the vault could not be read");
    }
    std::memcpy(into.data() + at, piece.data(), bytes);
  }
  co_return Status();
}

// Judges the requests that the owner before was carrying out when it died, before anything in the vault changes: from
// then on their records say what became of them, or nothing.
Task<Status> Owner::settle_records(Bytes vault, Nanos deadline, Cost& cost) {
  records_.assign(site_.records, std::nullopt);
  if (site_.records == 0) co_return Status();
  const std::uint64_t slot_bytes = site_.shape.slot_bytes;
  const fabric::Buffer bytes = session_.port().buffer(site_.records * Record::kBytes);
  const fabric::Outcome outcome =
      co_await session::read_long(session_, layout::kTable, site_.record(0).offset, bytes.span(), deadline, cost);
  if (outcome.fate != Fate::done) co_return session::gone(session_, Code::unavailable, "the records were not read");
  for (std::uint32_t number = 0; number < site_.records; ++number) {
    const MutableBytes own = bytes.span().subspan(number * Record::kBytes, Record::kBytes);
    std::optional<Record> record = read_record(own, number);
    if (!record || record->done) {
      records_[number] = record;
      continue;
    }
    bool whole = false;
    for (Place place = 0; place < site_.shape.end() && !whole; ++place) {
      const Slot slot = read_slot(vault.subspan(place * slot_bytes, slot_bytes), place);
      whole = slot.whole() && record->decides(slot.version);
    }
    record->done = whole == (record->pairs > 0);
    if (record->done) {
      base::store(own.data() + Record::kDoneAt, record->ticket);
      records_[number] = record;
    } else {
      std::memset(own.data(), 0, own.size());
    }
    ++counts_.settled;
    const std::array chain{Op::write(site_.record(number), own)};
    const fabric::Outcome settled = co_await session_.post(chain, deadline, cost);
    if (settled.fate != Fate::done) co_return session::gone(session_, Code::unavailable, "a record was not settled");
  }
  co_return Status();
}

std::optional<bool> Owner::outcome(std::uint32_t record, std::uint64_t ticket) const {
  if (record >= records_.size() || !records_[record] || records_[record]->ticket != ticket) return std::nullopt;
  return records_[record]->existed;
}

// Reads what rebuild() cannot tell by the slots alone: whether two pairs of one hash, of which one lies in an extent,
// have one key.
Task<Status> Owner::read_keys(Bytes vault, Keys& keys, Nanos deadline, Cost& cost) {
  std::vector<std::pair<std::uint64_t, Slot>> pairs;
  for (Place place = 0; place < site_.shape.end(); ++place) {
    const Slot slot = read_slot(vault.subspan(place * site_.shape.slot_bytes, site_.shape.slot_bytes), place);
    if (slot.whole()) pairs.emplace_back(slot.hash_under(site_.secret), slot);
  }
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [hash, slot] = pairs[i];
    const bool shared = (i > 0 && pairs[i - 1].first == hash) || (i + 1 < pairs.size() && pairs[i + 1].first == hash);
    if (!shared || slot.state != SlotState::pointer || keys.by_block.contains(slot.block)) continue;
    const Result<Extent> extent = co_await read_extent_of(session_, slot, deadline, cost);
    if (!extent.ok()) co_return extent.status();
    if (!extent->whole) {
      co_return Status(Code::corrupt, "the extent at unit " + std::to_string(slot.block) +
                                          ", to which the vault points, is damaged: restore the table");
    }
    keys.by_block.emplace(slot.block, base::text_of(extent->key));
  }
  co_return Status();
}

Task<Status> Owner::repair(Bytes vault, std::vector<Effect> effects, Nanos deadline, Cost& cost) {
  const std::uint64_t slot_bytes = site_.shape.slot_bytes;
  const fabric::Buffer bytes = session_.port().buffer(fabric::kMaxChain * slot_bytes);
  for (std::size_t done = 0; done < effects.size();) {
    Chain chain;
    for (; done < effects.size() && chain.size() < fabric::kMaxChain; ++done) {
      const Effect& effect = effects[done];
      const MutableBytes into = bytes.span().subspan(chain.size() * slot_bytes, slot_bytes);
      Slot from;
      if (effect.kind == Effect::Kind::copy) {
        from = read_slot(vault.subspan(effect.from * slot_bytes, slot_bytes), effect.from);
      }
      chain.add(Op::write(site_.at(effect.place), into.first(put_effect(into, effect, from))));
    }
    const fabric::Outcome outcome = co_await session_.post(chain.ops(), deadline, cost);
    if (outcome.fate != Fate::done) {
      co_return session::gone(session_, Code::unavailable, "the vault could not be repaired; the next owner goes on");
    }
  }
  co_return Status();
}

Task<Status> Owner::name_owner(std::uint64_t incarnation, Nanos deadline, Cost& cost) {
  const fabric::Buffer word = session_.port().buffer(8);
  base::store(word.data(), incarnation);
  const std::uint64_t offset = layout::record_offset(site_.tables, site_.table) + layout::kRecordOwner;
  const std::array chain{Op::write({layout::kDirectory, offset}, word.first(8))};
  const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return session::gone(session_, Code::unavailable, "the directory does not name this owner");
}

Task<void> Owner::give_back(Nanos deadline) {
  if (standing_ != Standing::owner) co_return;
  standing_ = Standing::closing;
  while (under_way_ > 0) {
    // What such an operation has posted may still land, so that nobody else may have the lease before a fence.
    if (now() >= deadline && session_.alive()) {
      session_.end({Code::timed_out, "operations of a table's owner did not end before it had to give the table back"});
    }
    (void)co_await ended_.wait(now() + session_.grant().failure_timeout);
  }
  Cost cost;
  const Nanos soon = now() + session_.grant().failure_timeout;
  if (session_.alive()) (void)co_await name_owner(0, soon, cost);
  co_await tenure_->give_back(soon);
  tenure_.reset();
  forget();
}

void Owner::forget() {
  planner_.reset();
  index_.reset();
  records_.clear();
  standing_ = Standing::none;
}

// --- What the heap asks

Task<Result<bool>> Owner::refers(std::uint64_t units, Bytes extent, Nanos deadline, Cost& cost) {
  const auto whole = layout::read_extent(extent, units);
  if (!whole || whole->key.size() > layout::kMaxKeyBytes) co_return false;
  std::optional<std::uint64_t> block;
  const std::string key(base::text_of(whole->key));
  const Result<bool> there = co_await change(key, {.name = "a look at a block's key", .block = &block}, deadline, cost);
  if (!there.ok()) co_return there.status();
  co_return block == units;
}

Task<Status> Owner::rewrite(std::vector<std::uint64_t> units, std::uint64_t block_bytes, Nanos deadline, Cost& cost) {
  const index::Modify modify = [&](std::string_view key, index::Editor& editor) {
    return change(key, {.name = "a rewrite", .editor = &editor}, deadline, cost);
  };
  co_return co_await index::rewrite(session_, units, block_bytes, modify, deadline, cost);
}

// --- Lookups

// Takes the value, and changes nothing.
class Owner::Look final : public index::Editor {
 public:
  explicit Look(std::string& into) : into_(into) {}
  index::Edit edit(std::optional<std::string_view> value) override {
    if (value) into_ = *value;
    return index::Edit::keep();
  }

 private:
  std::string& into_;
};

Task<Result<std::optional<std::string>>> Owner::lookup(std::string_view key, Nanos deadline, Cost& cost,
                                                       std::string room) {
  if (Status status = index::check_sizes(key, 0); !status.ok()) co_return status;
  const UnderWay counted(*this);
  if (!owns()) co_return not_owner();
  const std::uint64_t hash = base::keyed_hash(site_.secret, base::bytes_of(key));
  Result<Seen> seen = co_await look(key, hash, room, deadline, cost);
  if (!seen.ok()) co_return seen.status();
  if (*seen == Seen::hit) co_return std::optional(std::move(room));
  if (*seen == Seen::absent) co_return std::optional<std::string>();
  // A change was in the way: looks again while none can be.
  ++counts_.looked;
  Look into(room);
  const Result<bool> there = co_await work(key, {.name = "a lookup", .editor = &into}, deadline, cost);
  if (!there.ok()) co_return there.status();
  co_return *there ? std::optional(std::move(room)) : std::nullopt;
}

// Reads the key's slots without locks. A whole slot of the arrays that has the key has its value: what moves or replaces
// the pair is WRITTEN after its new place, and before the index knows. That the key is absent, or what a slot of the
// stash has, counts only if no WRITE was posted meanwhile: the stash also has the new values of updates under way.
Task<Result<Owner::Seen>> Owner::look(std::string_view key, std::uint64_t hash, std::string& value, Nanos deadline,
                                      Cost& cost) {
  const FingerIndex::Candidates candidates = index_->find(hash);
  if (candidates.count == 0) {
    if (Status status = co_await confirm(deadline, cost); !status.ok()) co_return status;
    co_return Seen::absent;
  }
  for (const Place place : candidates.all()) {
    if (planner_->locked(place)) co_return Seen::unsure;
  }
  const session::EraPin pin = session_.pin();
  const std::uint64_t written = written_, slot_bytes = site_.shape.slot_bytes;
  const fabric::Buffer bytes = session_.port().buffer(candidates.count * slot_bytes);
  Chain chain;
  for (std::size_t i = 0; i < candidates.count; ++i) {
    chain.add(Op::read(site_.at(candidates.places[i]), bytes.span().subspan(i * slot_bytes, slot_bytes)));
  }
  const fabric::Outcome outcome = co_await session_.post(chain.ops(), deadline, cost);
  if (outcome.fate != Fate::done) {
    co_return session::gone(session_, Code::unavailable, "the slots of a key could not be read");
  }
  bool sure = written == written_;
  for (std::size_t i = 0; i < candidates.count; ++i) {
    const Place place = candidates.places[i];
    const Slot slot = read_slot(bytes.span().subspan(i * slot_bytes, slot_bytes), place);
    const bool counts = sure || !site_.shape.in_stash(place);
    Result<Seen> seen = co_await judge(key, slot, value, deadline, cost);
    if (!seen.ok()) co_return seen;
    if (*seen == Seen::hit && counts) co_return Seen::hit;
    if (*seen != Seen::absent) sure = false;
  }
  co_return sure ? Seen::absent : Seen::unsure;
}

Task<Result<Owner::Seen>> Owner::judge(std::string_view key, const Slot& slot, std::string& value, Nanos deadline,
                                       Cost& cost) {
  if (!slot.whole()) co_return Seen::unsure;
  if (slot.state == SlotState::in_place) {
    if (base::text_of(slot.key) != key) co_return Seen::absent;
    value = base::text_of(slot.value);
    co_return Seen::hit;
  }
  if (slot.hash != base::keyed_hash(site_.secret, base::bytes_of(key))) co_return Seen::absent;
  const Result<Extent> extent = co_await read_extent_of(session_, slot, deadline, cost);
  if (!extent.ok()) co_return extent.status();
  if (!extent->whole) co_return Seen::unsure;
  if (base::text_of(extent->key) != key) co_return Seen::absent;
  value = base::text_of(extent->value);
  co_return Seen::hit;
}

// Reads the word of the lease: the lane executes it only if the memory node has not fenced this owner.
Task<Status> Owner::confirm(Nanos deadline, Cost& cost) {
  ++counts_.confirmed;
  const fabric::Buffer word = session_.port().buffer(8);
  const std::array chain{Op::read({layout::kLeases, layout::table_lease(site_.table) * 8}, word.first(8))};
  const fabric::Outcome outcome = co_await session_.post(chain, deadline, cost);
  if (outcome.fate == Fate::done) co_return Status();
  co_return session::gone(session_, Code::unavailable, "the table has another owner, perhaps");
}

}  // namespace farpool::cuckooduo
