// SPDX-License-Identifier: Apache-2.0
#include "swordbox/shell/replay.h"

#include <algorithm>
#include <optional>

#include "roce/pcap.h"

namespace farpool::swordbox {
namespace {

using base::Result;
using base::Status;

struct Recorder final : Sink {
  explicit Recorder(const std::function<Status(base::Nanos, base::Bytes)>& to) : send_to(to) {}
  void send(base::Bytes frame) override {
    ++sent;
    if (status.ok()) status = send_to(now, frame);
  }
  const std::function<Status(base::Nanos, base::Bytes)>& send_to;
  base::Nanos now = 0;
  std::uint64_t sent = 0;
  Status status;
};

// Lets the timers fire that are due before `until`, each at its time.
void pass_time(Box& box, Recorder& out, base::Nanos until) {
  for (;;) {
    const base::Nanos next = box.next_time();
    if (next == base::kNever || next > until) return;
    out.now = std::max(out.now, next);
    box.on_time(out.now, out);
  }
}

}  // namespace

Result<Replayed> replay(base::Bytes file, const Settings& settings,
                        const std::function<Status(base::Nanos time, base::Bytes frame)>& send) {
  auto reader = roce::PcapReader::open(file);
  if (!reader.ok()) return reader.status();
  Replayed result;
  Recorder out(send);
  std::optional<Box> box;
  for (;;) {
    auto frame = reader->next();
    if (!frame.ok()) return frame.status();
    if (!*frame) break;
    ++result.frames;
    if (!(*frame)->whole) {
      ++result.cut;
      continue;
    }
    if (!box) {
      out.now = (*frame)->time;
      const base::Nanos begin = out.now - settings.longest_life;
      box.emplace(settings, begin);
    }
    pass_time(*box, out, (*frame)->time);
    out.now = std::max(out.now, (*frame)->time);
    box->on_packet((*frame)->bytes, out.now, out);
    if (!out.status.ok()) return out.status;
  }
  if (box) {
    pass_time(*box, out, base::kNever - 1);
    result.counts = box->counts();
  }
  result.sent = out.sent;
  if (!out.status.ok()) return out.status;
  return result;
}

}  // namespace farpool::swordbox
