// SPDX-License-Identifier: Apache-2.0
// A box between two interfaces: frames that come in by one leave by the other, and the box decides about RoCEv2 packets
// from and to servers with ranges. Nobody sees it: it has no address, and frames keep theirs.
//
//   packets of servers that come in on the clients' side,
//   or to servers on the servers' side                       pass unchanged; the box neither sees nor believes them
//   frames that a sender wants a NIC to split                pass with that wish; RoCEv2 to or from ranges is dropped
//   packets that waited for a quarter of the longest life    dropped, if they concern ranges: the box relies on it
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/counts.h"
#include "base/result.h"
#include "net/loop.h"
#include "swordbox/box.h"
#include "swordbox/shell/capture.h"
#include "swordbox/shell/link.h"

namespace farpool::swordbox {

enum class Side : std::uint8_t { clients, servers };
constexpr Side opposite(Side side) { return side == Side::clients ? Side::servers : Side::clients; }

// Counts that concern both sides; a link's own are in LinkCounts.
struct ShellCounts {
  std::uint64_t other_frames = 0;
  std::uint64_t wrong_side = 0;
  std::uint64_t dropped_stale = 0;
  std::uint64_t dropped_late = 0;
  std::uint64_t dropped_several = 0;
  std::uint64_t interface_losses = 0;
};

inline constexpr auto kShellCounts = std::to_array<base::Count<ShellCounts>>({
    {&ShellCounts::other_frames, "other_frames", "Frames that do not concern ranges, and passed unchanged."},
    {&ShellCounts::wrong_side, "wrong_side",
     "Packets from a server that came in on the clients' side, or to one on the servers' side: passed, not believed."},
    {&ShellCounts::dropped_stale, "dropped_stale", "Packets dropped because they had waited too long for the box."},
    {&ShellCounts::dropped_late, "dropped_late", "Packets dropped because the box was too late to send them."},
    {&ShellCounts::dropped_several, "dropped_several", "RoCEv2 packets dropped because a NIC was to split them."},
    {&ShellCounts::interface_losses, "interface_losses", "Times that an interface stopped to pass frames."},
});

inline constexpr auto kLinkCounts = std::to_array<base::Count<LinkCounts>>({
    {&LinkCounts::received, "received", "Frames received."},
    {&LinkCounts::sent, "sent", "Frames sent."},
    {&LinkCounts::overrun, "overrun", "Frames that the kernel dropped because the box did not take them in time."},
    {&LinkCounts::unreadable, "unreadable", "Frames dropped because they were too long, or of an unknown kind."},
    {&LinkCounts::dropped_long, "dropped_long", "Frames dropped because they are longer than the interface's MTU."},
    {&LinkCounts::dropped_full, "dropped_full", "Frames dropped because the interface's queue was full."},
    {&LinkCounts::dropped_down, "dropped_down", "Frames dropped because the interface was down."},
    {&LinkCounts::dropped_failed, "dropped_failed", "Frames that the kernel refused for other reasons."},
});

class Shell final : private Sink {
 public:
  struct Options {
    std::string clients, servers;  // interfaces
    Settings box;
    std::unique_ptr<Capture> capture;  // none: nothing is captured
    std::function<void(bool warning, const std::string& line)> log;
  };
  // What it has counted, some time ago (kBeat).
  struct Snapshot {
    Counts box;
    ShellCounts shell;
    std::array<LinkCounts, 2> links;  // by side
    base::Nanos turned = 0;           // when it was made
    std::string trouble;              // why frames do not pass; empty: they do
  };

  // Opens both interfaces, and begins. It works on the loop's thread, which also destroys it. Errors: those of
  // Link::open, and invalid_argument if the interfaces do not fit to each other.
  static base::Result<std::unique_ptr<Shell>> start(net::Loop& loop, Options options);

  Snapshot snapshot() const;  // any thread

  static constexpr base::Nanos kBeat = 100 * base::kMillisecond;

 private:
  Shell(net::Loop& loop, Options options, std::unique_ptr<Link> clients, std::unique_ptr<Link> servers);
  Link& link(Side side) { return *links_[static_cast<std::size_t>(side)]; }
  void watch(Side side);
  void pump();
  bool pump(Side side);
  void handle(Side side, Frame& frame);
  void pass(Side to, const Frame& frame);
  void send(base::Bytes frame) override;
  void flush();
  void on_alarm();
  void arm();
  void beat();
  void look_after(Side side);

  net::Loop& loop_;
  const std::function<void(bool, const std::string&)> log_;
  const std::unique_ptr<Capture> capture_;
  const base::Nanos again_, patience_;
  Box box_;
  std::array<std::unique_ptr<Link>, 2> links_;
  std::array<std::unique_ptr<net::Watch>, 2> watches_;
  std::array<Outbox, 2> outboxes_;
  Batch batch_;
  ShellCounts counts_;
  net::Alarm alarm_, beat_;
  bool armed_ = false, posted_ = false;
  base::Nanos now_ = 0;             // when the box was last asked
  const Frame* arrived_ = nullptr;  // what the box is looking at
  std::array<std::string, 2> troubles_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what is posted

  mutable std::mutex mutex_;
  Snapshot snapshot_;
};

}  // namespace farpool::swordbox
