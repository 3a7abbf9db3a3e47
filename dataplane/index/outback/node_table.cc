// SPDX-License-Identifier: Apache-2.0
#include "index/outback/node_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "fabric/words.h"
#include "index/outback/verify.h"
#include "layout/lease.h"

namespace farpool::outback {
namespace {

// A step of a scan looks at no more than so many buckets, and replies with no more bytes.
constexpr std::uint64_t kMostScanned = 1024;
constexpr std::size_t kMostScanBytes = 64 * 1024;

using layout::changes;

bool has_bucket(Op op) { return op <= Op::scan || (op >= Op::leave && op <= Op::stay); }

// A scan's position: some buckets of a partition, with how often the table had got another locator when the scan came
// there. A table whose keys have moved within the partition since is looked at from the partition's first bucket on.
struct Position {
  std::uint64_t partition = 0, tag = 0, bucket = 0;

  static Position of(const Cut& cut, std::uint64_t number) {
    const std::uint64_t buckets = cut.figures.partition_buckets;
    return {number / buckets / cut.scan_tags(), number / buckets % cut.scan_tags(), number % buckets};
  }
  std::uint64_t number(const Cut& cut) const {
    return (partition * cut.scan_tags() + tag) * cut.figures.partition_buckets + bucket;
  }
};
// Buckets that a step of a scan works on which finds that a partition's keys have not all moved.
constexpr std::uint64_t kSettledByScan = 256;

// Checks the locator, and makes one that was never published unreadable.
base::Status take_locators(const Ground& ground, const Stage& stage, fabric::Hand hand) {
  if (ground.settings.locator.empty()) {
    if (!stage.moving && stage.place == 0) return {};
    return {base::Code::corrupt, "the Outback table has grown, and there is no region of its locator"};
  }
  if (base::Status status = check_locator(ground.cut, stage, ground.place(stage.place)); !status.ok()) return status;
  const base::MutableBytes other = ground.place(1 - stage.place);
  const auto header = LocatorHeader::parse(other);
  if (header.ok() && header->generation > stage.generation) hand.write(other.data(), 0);
  return {};
}

}  // namespace

base::Result<std::unique_ptr<NodeTable>> NodeTable::open(base::MutableBytes memory, const Settings& settings,
                                                         fabric::Hand hand) {
  auto cut = parse(memory);
  if (!cut) return cut.status();
  const std::uint64_t life = base::load<std::uint64_t>(memory.data() + kLifeAt) + 1;
  if (life > kMostLives) {
    return base::Status{base::Code::corrupt, "the Outback table says that " + std::to_string(life - 1) +
                                                 " processes have served it, which cannot be"};
  }
  if (base::Status status = settings.growth.check(); !status.ok()) return status;
  const auto stage = stage_of(*cut, memory);
  if (!stage.ok()) return stage.status();
  auto finished = finish_decided(*cut, memory, hand);
  if (!finished) return finished.status();
  hand.write(memory.data() + kLifeAt, life);
  const Ground ground{.cut = *cut, .memory = memory, .settings = settings, .life = life};
  if (base::Status status = take_locators(ground, *stage, hand); !status.ok()) return status;
  std::unique_ptr<NodeTable> table(new NodeTable(ground, *stage, std::make_unique<Chunks>(*cut)));
  if (base::Status status = table->adopt(); !status.ok()) return status;
  if (const auto header = LocatorHeader::parse(ground.place(stage->place)); header.ok()) {
    table->growth_.begin_with(*header);
  }
  return table;
}

base::Status NodeTable::adopt() {
  const std::uint64_t zones = cut().figures.zones;
  for (std::uint64_t i = 0; i < zones; ++i) zones_.push_back(std::make_unique<Zone>(ground_, *chunks_, i));
  scanned_.resize(zones);
  bool sound = true;
  const auto visit = [&](const Seen& seen) {
    Zone& zone = *zones_[cut().zone_of(seen.bucket)];
    const bool key = seen.by != Seen::By::line;
    sound = zone.adopt(seen.address, seen.bytes, key ? &seen.block : nullptr, seen.by == Seen::By::list) && sound;
  };
  const index::Report report = verify(cut(), ground_.memory, ground_.settings.secret, {.visit = visit, .progress = {}});
  if (report.defect_count() > 0) {
    return {base::Code::corrupt, "the Outback table has " + std::to_string(report.defect_count()) +
                                     " defects, the first of them: " + report.defects.front().what +
                                     "; let farpool-fsck look at the memory"};
  }
  for (const auto& zone : zones_) sound = zone->adopted_all() && sound;
  if (!sound) return {base::Code::corrupt, "blocks of the Outback table overlap: let farpool-fsck look at the memory"};
  lines_ = std::make_unique<Lines>(cut(), ground_.memory);
  return {};
}

std::optional<std::uint64_t> NodeTable::zone_of(const Request& request) const {
  if (request.op == Op::close && request.place < zones()) return request.place;
  if (!has_bucket(request.op)) return std::nullopt;
  const std::uint64_t buckets = cut().figures.partition_buckets;
  const std::uint64_t partition =
      request.op == Op::scan ? Position::of(cut(), request.place).partition : request.place / buckets;
  if (partition >= cut().bucket_count / buckets) return std::nullopt;
  return cut().zone_of_partition(partition);
}

bool NodeTable::is_turn(const Request& request, std::uint64_t zone) {
  if (ground_.settings.locator.empty()) return false;
  const bool moving = zones_[zone]->stage().moving;
  return changes(request.op) ? moving || growth_.building() || zones_[zone]->is_turn() : moving;
}

NodeTable::Totals NodeTable::totals() const {
  Totals totals;
  for (const auto& zone : zones_) {
    const Counted& of = zone->counted();
    totals.keys += of.keys.get();
    totals.bytes += of.bytes.get();
    totals.marks.overflow_keys += of.overflow.get();
    of.counts.add_to(totals.marks);
  }
  return totals;
}

// Says whether the session holds the lease for moves. Another one gets it only after this one has ended, and its CALLs.
bool NodeTable::may_move(std::uint64_t session) const {
  using layout::LeaseWord;
  std::uint64_t word = 0;
  fabric::read_words(ground_.settings.move_lease, base::mutable_bytes_of(word));
  return LeaseWord::held(word) && LeaseWord::Session::get(word) == LeaseWord::Session::get(session);
}

// Why a request cannot be, whatever the table's keys are and whichever locator the client has.
Status NodeTable::judge(const Request& request, std::uint64_t session) const {
  if (request.table != 0) return Status::bad_table;  // a memory has one
  if (layout::moves(request.op) || (request.flags & Request::kByMover) != 0) {
    if (ground_.settings.move_lease == nullptr) return Status::bad_op;
    if (!may_move(session)) return Status::no_lease;
  }
  if (request.op == Op::close && request.place >= zones()) return Status::bad_place;
  if (!has_bucket(request.op) || request.op == Op::scan) return Status::done;
  if (request.place >= cut().bucket_count) return Status::bad_place;
  if (request.op == Op::get && request.argument >= kBucketSlots) return Status::bad_place;
  return Status::done;
}

// Says whether a request goes by another locator than the table's, and what to answer. The zone goes by the newest stage.
bool NodeTable::is_old(const Request& request, const Zone& zone, Status& status) const {
  const Stage& stage = zone.stage();
  if (request.generation == stage.generation) {
    const bool there = request.op == Op::scan || request.place < cut().shape(stage.level).table_buckets();
    status = there ? Status::done : Status::bad_place;
    return !there;
  }
  // A client may read the next locator just before it is the table's.
  const bool early = growth_.is_next(request.generation) || this->stage().generation == request.generation;
  status = early ? Status::running : Status::stale;
  return true;
}

// Frees a block that a line held.
void NodeTable::drop(std::uint64_t address) const {
  if (address == 0) return;
  const auto block = view_block(cut(), ground_.memory, address);
  if (!block || block->head.bucket >= cut().bucket_count) return;  // open() has checked it: this process is ending
  zones_[cut().zone_of(block->head.bucket)]->give_back(address, block->head.bytes());
}

// As the paper has it: no key comes or goes while a locator is being built.
bool NodeTable::is_refused(const Request& request, Reply& reply, Status& status) const {
  if (!ground_.settings.growth.as_paper || !growth_.building() || request.op == Op::update) return false;
  reply.flags |= Reply::kWaits;
  status = Status::full;
  return true;
}

Status NodeTable::change(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer) {
  const fabric::RequestId id = fabric::RequestId::of(request.request_id);
  Zone& zone = *zones_[cut().zone_of(request.place)];
  switch (lines_->begin(session, request.client, id, answer.reply)) {
    case Lines::Turn::first:
      break;
    case Lines::Turn::recorded: {
      // The line is ours while its record is read. A block that it holds stays as it is while we have the zone's lock.
      const Status status = zone.recall(lines_->record_of(request.client, id), answer);
      lines_->release(request.client, id);
      zone.describe(request.place, answer.reply);
      return status;
    }
    case Lines::Turn::again:
      answer.reply.flags |= Reply::kAgain;
      zone.describe(request.place, answer.reply);
      return answer.reply.status;
    case Lines::Turn::running:
      return Status::running;
    case Lines::Turn::old:
      return Status::forgotten;
    case Lines::Turn::not_attached:
      return Status::not_attached;
    case Lines::Turn::bad:
      return Status::bad_request_id;
  }
  // Only now: a change that has taken effect is told so, whatever has become of the client's locator since.
  Status status = Status::done;
  if (is_old(request, zone, status) || is_refused(request, answer.reply, status)) {
    lines_->release(request.client, id);
    return status;
  }
  Zone::Done done;
  status = zone.change(request, hand, lines_->record_of(request.client, id), answer, done);
  answer.reply.status = status;
  drop(done.dropped);
  lines_->finish(request.client, id, answer.reply, done.changed);
  zone.describe(request.place, answer.reply);
  return status;
}

Status NodeTable::attach(const Request& request, std::uint64_t session, fabric::Hand hand, Reply& reply) {
  const Lines::Attached attached = request.op == Op::attach ? lines_->attach(session, request.argument, hand)
                                                            : lines_->detach(session, request.client, hand);
  for (const std::uint64_t address : attached.dropped) drop(address);
  reply.number = attached.client;
  if (attached.fresh) reply.flags |= Reply::kFresh;
  if (attached.status == Status::done) reply.version = cut().figures.lines;
  return attached.status;
}

Status NodeTable::scan(const Request& request, fabric::Hand hand, Answer& answer, std::size_t room) {
  Position at = Position::of(cut(), request.place);
  const std::uint64_t number = cut().zone_of_partition(at.partition);
  Zone& zone = *zones_[number];
  const Stage& stage = zone.stage();
  const std::uint64_t partitions = cut().shape(stage.level).partitions, now = cut().growths(stage);
  if (at.partition >= partitions) return Status::done;
  if ((answer.reply.flags & Reply::kOldMap) != 0) return Status::old_map;
  const bool begins = at.tag < now || at.bucket == 0;
  for (std::uint64_t buckets = kSettledByScan; !zone.settle_partition(at.partition, buckets, hand);) {
    // A step that finds no end of it has no keys, and the next one comes here again.
    answer.reply.number = request.place + 1;
    if (begins && request.place + 1 < Position{at.partition, now, 0}.number(cut())) return Status::done;
    buckets = kSettledByScan;
  }
  const std::uint64_t first = at.partition * cut().figures.partition_buckets;
  const std::uint64_t end = first + cut().figures.partition_buckets;
  std::vector<std::byte>& keys = scanned_[number];
  std::uint64_t next = 0;
  const std::uint64_t count = std::clamp<std::uint64_t>(request.argument, 1, kMostScanned);
  const std::size_t most = std::min((room - kKvReplyHead) / 8 * 8, kMostScanBytes);
  const Status status = zone.scan(begins ? first : first + at.bucket, end, count, most, keys, next);
  answer.reply.value = keys;
  at = next == end ? Position{at.partition + 1, 0, 0} : Position{at.partition, std::max(at.tag, now), next - first};
  answer.reply.number = at.partition == partitions ? 0 : at.number(cut());
  return status;
}

Status NodeTable::carry_out(const Request& request, std::uint64_t session, fabric::Hand hand, Answer& answer,
                            std::size_t room) {
  if (const Status status = judge(request, session); status != Status::done) return status;
  const auto number = zone_of(request);
  Zone* const zone = number ? zones_[*number].get() : nullptr;
  if (zone != nullptr) zone->enter();
  Status status = Status::done;
  if (zone != nullptr && has_bucket(request.op)) {
    if (!changes(request.op) && is_old(request, *zone, status)) return status;
    answer.reply.flags |= zone->flags_of_move(request.move);
  }
  switch (request.op) {
    case Op::get:
      return zone->get(request.place, request.argument, answer);
    case Op::find:
      return zone->find(request, answer);
    case Op::scan:
      return zone == nullptr ? Status::done : scan(request, hand, answer, room);
    case Op::count: {
      const Totals all = totals();
      answer.reply.number = all.keys;
      answer.reply.version = all.bytes;
      return Status::done;
    }
    case Op::attach:
    case Op::detach:
      return attach(request, session, hand, answer.reply);
    case Op::close:
      answer.reply.number = request.place + 1 < zones() ? request.place + 1 : 0;
      return zone->close(request.move, hand);
    case Op::leave:
      return zone->leave(request, hand, answer);
    case Op::left:
      return zone->left(request, hand);
    case Op::stay:
      return zone->stay(request, hand);
    case Op::finish:
      hand.write(ground_.settings.move_finished, request.move);
      return Status::done;
    default:
      return change(request, session, hand, answer);
  }
}

std::size_t NodeTable::run(const Request& request, std::uint64_t session, fabric::Hand hand, base::MutableBytes room) {
  Answer answer;
  const Status status = carry_out(request, session, hand, answer, room.size());
  Reply& reply = answer.reply;
  reply.status = status;
  reply.generation = stage().generation;
  if (growth_.building() && !ground_.settings.growth.as_paper) reply.flags |= Reply::kGrows;
  if (is_refusal(status)) reply.key = reply.value = {};
  if (layout::kv_reply_bytes(reply.key.size(), reply.value.size()) > room.size() && answer.block != 0) {
    // The client reads the block itself: key and value lie there as the lengths say.
    reply.flags |= Reply::kElsewhere;
    reply.key_bytes = request.op == Op::get ? static_cast<std::uint32_t>(reply.key.size()) : answer.key_bytes;
    reply.value_bytes = static_cast<std::uint32_t>(reply.value.size());
    reply.number = answer.block;
  }
  return put_kv_reply(reply, room);
}

}  // namespace farpool::outback
