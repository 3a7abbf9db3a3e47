// SPDX-License-Identifier: Apache-2.0
// A small world around the box: clients and a server that keep the rules of reliable connections, and a network that
// loses, repeats and reorders packets. Every choice is asked of one function, so that a run is a seed or a tape.
//
// The server judges each execution at once: whatever the packet looked like, memory afterwards must be what the client's
// own operation would have made of memory before. So each word is linearizable, each operation takes effect once, in the
// order of its connection. A client judges what it is told: the word as it was when the server executed that PSN.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "roce/packet.h"
#include "roce/psn.h"
#include "swordbox/box.h"

namespace farpool::swordbox {

inline constexpr std::uint32_t kMtu = 256;
inline constexpr std::uint64_t kWords = 0x10000;  // a range of words
inline constexpr std::uint64_t kData = 0x900000;  // memory in no range
inline constexpr roce::Address kServer = roce::ipv4(10, 0, 0, 1);

enum class Kind { compare_swap, masked, fetch_add, set, read_word, write_data, write_long, read_long };

struct Operation {
  Kind kind = Kind::compare_swap;
  roce::Atomic atomic;  // a set's value is its swap
  std::uint32_t psn = 0, psns = 1;
  bool executed = false, done = false;
  std::uint64_t prior = 0;  // at its execution
  std::uint32_t got = 0;    // packets of a READ's answer
};

inline bool is_atomic(Kind kind) { return kind <= Kind::fetch_add; }
inline bool is_read(Kind kind) { return kind == Kind::read_word || kind == Kind::read_long; }

inline roce::Opcode opcode_of(Kind kind) {
  switch (kind) {
    case Kind::compare_swap:
      return roce::Opcode::compare_swap;
    case Kind::masked:
      return roce::Opcode::masked_compare_swap;
    case Kind::fetch_add:
      return roce::Opcode::fetch_add;
    case Kind::read_word:
    case Kind::read_long:
      return roce::Opcode::read_request;
    case Kind::write_long:
      return roce::Opcode::write_first;
    default:
      return roce::Opcode::write_only;
  }
}

// What the parts of the world share.
struct Ground {
  std::function<std::uint32_t(std::uint32_t)> choose;  // a number below the bound; 0 is what usually happens
  std::function<void(const roce::Packet&, bool from_client)> send;
  std::string wrong;  // the first broken rule
  base::Nanos now = 0;
  void fail(const std::string& what) {
    if (wrong.empty()) wrong = what;
  }
};

class Client {
 public:
  Client(Ground& ground, std::uint32_t id, std::uint32_t first_psn)
      : id(id), first_psn(first_psn), next_psn(first_psn), ground_(ground) {}

  roce::Address address() const { return roce::ipv4(10, 0, 1, static_cast<std::uint8_t>(id % 3 + 1)); }
  std::uint32_t server_queue_pair() const { return 0x100 + id; }
  std::uint32_t client_queue_pair() const { return 0x800 + id; }
  bool works() const { return !dead && !failed; }
  bool settled() const { return !works() || (outstanding.empty() && plan.empty()); }
  bool may_post() const { return works() && !plan.empty() && outstanding.size() < window; }

  void post() {
    Operation operation = plan.front();
    plan.pop_front();
    if (is_atomic(operation.kind) && operation.kind != Kind::fetch_add && operation.atomic.compare == kBelieved) {
      operation.atomic.compare = believed[operation.atomic.address];
    }
    operation.psn = next_psn;
    operation.psns = operation.kind == Kind::write_long || operation.kind == Kind::read_long ? 3 : 1;
    next_psn = roce::psn_add(next_psn, operation.psns);
    all[operation.psn] = operation;
    outstanding.push_back(operation.psn);
    if (outstanding.size() == 1) patience = ground_.now;
    send(all[operation.psn], 0);
  }

  // Goes back to the oldest operation that is not done.
  void retransmit() {
    if (!works() || outstanding.empty()) return;
    patience = ground_.now;
    if (++retries > kRetries) {
      failed = true;
      return;
    }
    for (const std::uint32_t psn : outstanding) send(all[psn], all[psn].got);
  }

  void receive(const roce::Packet& packet) {
    if (!works()) return;
    const std::uint32_t psn = packet.bth.psn;
    if (!outstanding.empty() && roce::psn_before(psn, outstanding.front()) &&
        packet.bth.opcode != roce::Opcode::acknowledge) {
      return;  // an answer for the second time
    }
    if (packet.bth.opcode == roce::Opcode::acknowledge) {
      const roce::AckKind kind = roce::ack_kind(packet.aeth.syndrome);
      if (kind == roce::AckKind::ack) return complete_until(roce::psn_add(psn, 1));
      if (packet.aeth.syndrome != roce::kNakSequence) {
        failed = true;
        return;
      }
      complete_until(psn);
      if (!outstanding.empty() && !roce::psn_before(psn, outstanding.front())) retransmit();
      return;
    }
    complete_until(psn);
    if (outstanding.empty()) return;
    Operation& oldest = all[outstanding.front()];
    if (packet.bth.opcode == roce::Opcode::atomic_acknowledge) return take_prior(oldest, packet);
    if (!is_read(oldest.kind) || roce::psn_add(oldest.psn, oldest.got) != psn) return;
    if (++oldest.got == oldest.psns) finish();
  }

  const std::uint32_t id, first_psn;
  std::uint32_t next_psn;
  std::size_t window = 3;
  std::deque<Operation> plan;
  std::map<std::uint32_t, Operation> all;  // by PSN
  std::deque<std::uint32_t> outstanding;
  std::map<std::uint64_t, std::uint64_t> believed;  // what the client was last told of a word
  bool dead = false, failed = false;
  base::Nanos patience = 0;
  int retries = 0;
  std::uint64_t completed = 0, succeeded = 0;
  static constexpr std::uint64_t kBelieved = 0xbe11e7ed;
  static constexpr int kRetries = 100;

 private:
  void take_prior(Operation& oldest, const roce::Packet& packet) {
    if (oldest.psn != packet.bth.psn) return;
    if (!is_atomic(oldest.kind)) return ground_.fail("an Atomic ACK for an operation that is no atomic");
    if (!oldest.executed) return ground_.fail("an answer to what the server has not executed");
    if (oldest.prior != packet.prior) {
      return ground_.fail("client " + std::to_string(id) + " was told " + std::to_string(packet.prior) +
                          " of a word that held " + std::to_string(oldest.prior));
    }
    believed[oldest.atomic.address] = outcome(opcode_of(oldest.kind), oldest.atomic, packet.prior);
    succeeded += believed[oldest.atomic.address] != packet.prior;
    finish();
  }

  void finish() {
    all[outstanding.front()].done = true;
    outstanding.pop_front();
    ++completed;
    retries = 0;
    patience = ground_.now;
  }

  // An acknowledgement covers WRITEs. READs and atomics need an answer of their own.
  void complete_until(std::uint32_t psn) {
    while (!outstanding.empty()) {
      Operation& oldest = all[outstanding.front()];
      const std::uint32_t last = roce::psn_add(oldest.psn, oldest.psns);
      if (roce::psn_distance(last, psn) < 0) return;
      if (is_atomic(oldest.kind) || is_read(oldest.kind)) {
        if (roce::psn_before(oldest.psn, psn) && roce::psn_before(last, psn)) retransmit();
        return;
      }
      if (!oldest.executed) ground_.fail("an acknowledgement of what the server has not executed");
      finish();
    }
  }

  void send(const Operation& operation, std::uint32_t from) {
    for (std::uint32_t i = from; i < operation.psns; ++i) {
      roce::Packet packet;
      packet.ip.from = address();
      packet.ip.to = kServer;
      packet.bth.opcode = opcode_of(operation.kind);
      packet.bth.queue_pair = server_queue_pair();
      packet.bth.psn = roce::psn_add(operation.psn, i);
      packet.bth.ack_request = i + 1 == operation.psns;
      packet.atomic = operation.atomic;
      packet.reth = {.address = operation.atomic.address, .key = 7, .length = 8};
      std::vector<std::byte> bytes(operation.kind == Kind::write_long ? kMtu : 8);
      base::store(bytes.data(), operation.atomic.swap_or_add);
      if (operation.kind == Kind::write_long) {
        packet.reth.length = 3 * kMtu;
        if (i > 0) packet.bth.opcode = i == 1 ? roce::Opcode::write_middle : roce::Opcode::write_last;
      }
      if (operation.kind == Kind::read_long) packet.reth.length = (3 - i) * kMtu;
      if (!is_atomic(operation.kind) && !is_read(operation.kind)) packet.payload = bytes;
      ground_.send(packet, true);
      if (is_read(operation.kind)) return;  // one request for all that is missing
    }
  }

  Ground& ground_;
};

class Server {
 public:
  explicit Server(Ground& ground) : ground_(ground) {}

  void add(Client& client) { queue_pairs_[client.server_queue_pair()] = {&client, client.first_psn}; }
  // Fences: what comes afterwards is not executed.
  void destroy(const Client& client) { queue_pairs_[client.server_queue_pair()].destroyed = true; }
  bool has_fenced(const Client& client) { return queue_pairs_[client.server_queue_pair()].destroyed; }

  void receive(const roce::Packet& packet) {
    const auto found = queue_pairs_.find(packet.bth.queue_pair);
    if (found == queue_pairs_.end()) return ground_.fail("a packet for no queue pair");
    QueuePair& own = found->second;
    if (own.destroyed) {
      ++late;
      return;
    }
    const std::int32_t ahead = roce::psn_distance(own.expected, packet.bth.psn);
    if (ahead > 0) {
      if (!own.nak_sent) respond(own, roce::Opcode::acknowledge, own.expected, roce::kNakSequence);
      own.nak_sent = true;
    } else if (ahead < 0) {
      repeat(own, packet);
    } else {
      own.nak_sent = false;
      execute(own, packet);
    }
  }

  std::map<std::uint64_t, std::uint64_t> memory;
  bool permits_writes = true;
  std::uint64_t writes = 0, atomics = 0;
  std::uint64_t late = 0;  // packets for queue pairs that a fence has destroyed

 private:
  struct QueuePair {
    Client* client = nullptr;
    std::uint32_t expected = 0, msn = 0;
    bool destroyed = false, nak_sent = false;
    std::deque<std::pair<std::uint32_t, std::uint64_t>> atomics;  // PSN and prior value, of the last ones
  };

  void respond(const QueuePair& own, roce::Opcode opcode, std::uint32_t psn, std::uint8_t syndrome,
               std::uint64_t prior = 0, base::Bytes payload = {}) {
    roce::Packet packet;
    packet.ip.from = kServer;
    packet.ip.to = own.client->address();
    packet.bth.opcode = opcode;
    packet.bth.queue_pair = own.client->client_queue_pair();
    packet.bth.psn = psn;
    packet.aeth = {.syndrome = syndrome, .msn = own.msn};
    packet.prior = prior;
    packet.payload = payload;
    ground_.send(packet, false);
  }
  void acknowledge(const QueuePair& own) {
    respond(own, roce::Opcode::acknowledge, roce::psn_add(own.expected, roce::kPsnMask), roce::kAckWithoutCredits);
  }
  void answer_read(const QueuePair& own, const roce::Packet& packet) {
    const std::uint32_t count = roce::psns_of(packet.reth.length, kMtu);
    const std::vector<std::byte> bytes(kMtu);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto opcode = count == 1       ? roce::Opcode::read_response_only
                          : i == 0         ? roce::Opcode::read_response_first
                          : i + 1 == count ? roce::Opcode::read_response_last
                                           : roce::Opcode::read_response_middle;
      respond(own, opcode, roce::psn_add(packet.bth.psn, i), roce::kAckWithoutCredits, 0,
              base::Bytes(bytes).first(std::min(packet.reth.length, kMtu)));
    }
  }

  // Answers a request that has been executed.
  void repeat(const QueuePair& own, const roce::Packet& packet) {
    if (roce::is_atomic(packet.bth.opcode)) {
      for (const auto& [psn, prior] : own.atomics) {
        if (psn != packet.bth.psn) continue;
        respond(own, roce::Opcode::atomic_acknowledge, psn, roce::kAckWithoutCredits, prior);
      }
    } else if (packet.bth.opcode == roce::Opcode::read_request) {
      answer_read(own, packet);
    } else {
      acknowledge(own);
    }
  }

  void execute(QueuePair& own, const roce::Packet& packet) {
    Operation* const operation = intended(*own.client, packet.bth.psn);
    if (operation == nullptr) return ground_.fail("a packet that its client has not sent");
    const std::uint64_t address = operation->atomic.address;
    const std::uint64_t before = memory[address];
    const bool is_write = roce::is_write(packet.bth.opcode);
    if (is_write && !permits_writes && packet.reth.length == 8 && is_word(address)) {
      return respond(own, roce::Opcode::acknowledge, packet.bth.psn, roce::kNakAccess);
    }
    if (roce::is_atomic(packet.bth.opcode)) {
      memory[packet.atomic.address] = outcome(packet.bth.opcode, packet.atomic, memory[packet.atomic.address]);
      own.atomics.emplace_back(packet.bth.psn, before);
      if (own.atomics.size() > 16) own.atomics.pop_front();
      ++atomics;
    } else if (packet.bth.opcode == roce::Opcode::write_only && packet.reth.length == 8) {
      memory[packet.reth.address] = base::load<std::uint64_t>(packet.payload.data());
    }
    writes += is_write;
    judge(*operation, before);
    const std::uint32_t psns =
        packet.bth.opcode == roce::Opcode::read_request ? roce::psns_of(packet.reth.length, kMtu) : 1;
    own.expected = roce::psn_add(own.expected, psns);
    own.msn += roce::ends_message(packet.bth.opcode);
    if (roce::is_atomic(packet.bth.opcode)) {
      respond(own, roce::Opcode::atomic_acknowledge, packet.bth.psn, roce::kAckWithoutCredits, before);
    } else if (packet.bth.opcode == roce::Opcode::read_request) {
      answer_read(own, packet);
    } else if (packet.bth.ack_request && ground_.choose(3) != 1) {  // or it waits, to cover more
      acknowledge(own);
    }
  }

  static bool is_word(std::uint64_t address) { return address < kData; }

  Operation* intended(Client& client, std::uint32_t psn) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      const auto found = client.all.find(roce::psn_add(psn, roce::kPsnMask - i + 1));
      if (found != client.all.end()) return i < found->second.psns ? &found->second : nullptr;
    }
    return nullptr;
  }

  void judge(Operation& operation, std::uint64_t before) {
    const std::uint64_t address = operation.atomic.address;
    std::uint64_t meant = before;
    if (is_atomic(operation.kind)) meant = outcome(opcode_of(operation.kind), operation.atomic, before);
    if (operation.kind == Kind::set || operation.kind == Kind::write_data) meant = operation.atomic.swap_or_add;
    if (is_word(address) && memory[address] != meant) {
      ground_.fail("a word that held " + std::to_string(before) + " became " + std::to_string(memory[address]) +
                   " and not " + std::to_string(meant));
    }
    if (operation.psns == 1 && operation.executed) ground_.fail("an operation was executed twice");
    operation.executed = true;
    operation.prior = before;
  }

  Ground& ground_;
  std::map<std::uint32_t, QueuePair> queue_pairs_;
};

}  // namespace farpool::swordbox
