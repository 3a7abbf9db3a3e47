// SPDX-License-Identifier: Apache-2.0
// A middlebox in front of servers whose clients contend for words by one-sided atomics. It knows what those words hold,
// and turns atomics into WRITEs, which cost the server's NIC less. Clients get what the atomic would have told them.
//
// It is pure: packets and the time come in, packets go out. It allocates nothing after it has been made. docs/adr/0036
// says what it relies on, and why nothing that it does outlives a fence: no packet ever changes its queue pair, its key
// or its PSN, and no client is answered unless the server has acknowledged that PSN on the client's own queue pair.
//
// What it does with input that it cannot use:
//   no RoCEv2, other addresses, unreliable connections, unknown operations    passes unchanged
//   a wrong checksum, from or to a server with ranges                         dropped: endpoints would drop it as well
//   a request whose predecessor is missing; a retransmission to a word that
//   the box has forgotten; changes of ranges by other means than atomics and
//   WRITEs of one aligned word; requests to words when tables are full        dropped: the client sends it again
//   a response to what the box has not forwarded                              passes; the connection begins anew
#pragma once

#include <array>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "roce/cm.h"
#include "roce/packet.h"
#include "swordbox/connection.h"
#include "swordbox/settings.h"
#include "swordbox/table.h"
#include "swordbox/word.h"

namespace farpool::swordbox {

// Takes packets that leave the box. A shell finds the way by the packet's addresses.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void send(base::Bytes frame) = 0;
};

class Box {
 public:
  // Begins at `now`: for the longest life of a packet, no request that changes a range passes.
  Box(Settings settings, base::Nanos now);

  // Where a packet goes, as far as servers with ranges are concerned.
  enum class Way : std::uint8_t { elsewhere, to_server, from_server, between_servers };
  Way way_of(const roce::Packet& packet) const;

  // Takes a frame that has come on either side.
  void on_packet(base::Bytes frame, base::Nanos now, Sink& sink);
  // The same, for a frame that has been parsed already.
  void on_packet(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  // Does what is due. To be called when next_time() has come, or more often.
  void on_time(base::Nanos now, Sink& sink);
  // Returns when something may be due, or kNever.
  base::Nanos next_time() const;

  // Tells the box of a connection that begins: what the connection manager would have told it.
  void introduce(const roce::Address& client, std::uint32_t client_queue_pair, const roce::Address& server,
                 std::uint32_t server_queue_pair, std::uint32_t first_psn, std::uint32_t mtu, base::Nanos now);

  const Counts& counts() const { return counts_; }

 private:
  enum class Verdict { sent, waits, drop };
  struct Pending {  // a request of the connection manager
    bool live = false;
    roce::Address client;
    std::uint32_t id = 0, queue_pair = 0, mtu = 0;
  };
  struct RangeState {
    Range range;
    bool refused = false;  // the server does not permit WRITEs there
  };
  struct Slot {  // for a packet that waits
    std::uint32_t size = 0;
    std::array<std::byte, 256> bytes;
  };

  bool serves(const roce::Address& server) const;
  RangeState* range_of(const roce::Address& server, std::uint64_t address, std::uint64_t bytes);
  // Says whether the request may change, or means to change, words of a range.
  bool touches(const roce::Packet& packet);

  // Connections.
  std::uint32_t connection_of(const roce::Packet& packet, base::Nanos now);
  std::uint32_t make_connection(const Key& key, base::Nanos now);
  std::uint32_t make_room(base::Nanos now);
  void erase(std::uint32_t at);
  void forget(std::uint32_t at, base::Nanos now);
  void cut(std::uint32_t at, base::Nanos now);
  void pair(std::uint32_t at, std::uint32_t client_queue_pair);
  std::uint32_t find_pair(const roce::Packet& packet);
  void unlist_unpaired(std::uint32_t at);
  void manage(const roce::Packet& packet, base::Nanos now);
  Entry& entry(const Connection& connection, std::uint32_t i);
  Entry* find_entry(const Connection& connection, std::uint32_t psn);
  Slot& slot(const Connection& connection, std::uint32_t i);
  std::uint32_t index_of(const Connection& connection) const {
    return static_cast<std::uint32_t>(&connection - connections_.data());
  }

  // Requests.
  void on_request(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  void on_retransmission(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now,
                         Sink& sink);
  void on_fresh(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  Verdict forward(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  Verdict admit(Connection& connection, const roce::Packet& packet, base::Nanos now, Sink& sink);
  bool make_entry(Connection& connection, const Entry& entry);
  bool has_lost_its_place(Connection& connection, base::Nanos now);
  void begin_anew(Connection& connection, base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  void adopt(Connection& connection, std::uint32_t psn, base::Nanos now);
  std::uint32_t psns_of(Connection& connection, const roce::Packet& packet);
  bool hold(Connection& connection, base::Bytes frame);
  void drop_held(Connection& connection);
  void send_entry(Connection& connection, Entry& entry, base::Nanos now, Sink& sink);

  // Words.
  std::uint32_t word_of(const roce::Address& server, std::uint64_t address);
  void wait_for(Connection& connection, std::uint32_t word);
  void run_waiters(std::uint32_t word, base::Nanos now, Sink& sink);
  void run_held(Connection& connection, roce::Packet packet, base::Nanos now, Sink& sink);
  void block(std::uint32_t word, base::Nanos until);
  void abandon(Entry& entry, base::Nanos now);

  // Responses.
  void on_response(base::Bytes frame, const roce::Packet& packet, base::Nanos now, Sink& sink);
  void learn_mtu(Connection& connection, const roce::Packet& packet);
  std::uint32_t connection_of_response(const roce::Packet& packet, base::Nanos now);
  void note_nak(const Connection& connection, const roce::Packet& packet);
  void execute_through(Connection& connection, std::uint32_t through, const roce::Packet& packet, Sink& sink);
  void finish(Entry& entry, const roce::Packet* answer);
  void answer(const Connection& connection, Entry& entry, const roce::Packet& response, Sink& sink);
  void refuse(const Connection& connection, Entry& entry);
  void run_freed(base::Nanos now, Sink& sink);

  void pass(base::Bytes frame, Sink& sink);
  void send(const roce::Packet& packet, Sink& sink);
  void mark_busy(Connection& connection);

  Settings settings_;
  base::Nanos quiet_until_;
  std::vector<RangeState> ranges_;
  Counts counts_;

  Table by_server_;  // client, server, the server's queue pair
  Table by_client_;  // server, client, the client's queue pair; what it finds is in pairs_
  std::vector<std::uint32_t> pairs_;
  std::vector<Connection> connections_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  Table word_keys_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> freed_;  // words whose waiters are to be looked at
  std::size_t freed_count_ = 0;
  std::array<Pending, 64> pending_;
  std::size_t next_pending_ = 0;
  std::uint32_t busy_ = kNone, unpaired_ = kNone, blocked_ = kNone;
  std::uint32_t connection_hand_ = 0, word_hand_ = 0;  // where the search for room goes on
  base::Nanos untracked_until_ = 0;                    // there may be connections that the table had no room for
  std::uint32_t wanted_word_ = kNone;                  // for which the last packet has to wait
  std::array<std::byte, 256> out_;
};

}  // namespace farpool::swordbox
