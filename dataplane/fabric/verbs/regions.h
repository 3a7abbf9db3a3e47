// SPDX-License-Identifier: Apache-2.0
// The memory of a memory node that lanes reach through the device, and the keys under which they do. A region is registered
// when a lane first asks for it, and stays so: rights are revoked by the end of queue pairs. Where the device has memory windows
// of type 2B, a lane gets a key that is good on its own queue pair alone.
//
// Used by the control thread. Outlives every lane, since it holds their protection domain.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "fabric/host.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/device_memory.h"
#include "fabric/verbs/handshake.h"

namespace farpool::fabric::verbs {

class Regions {
 public:
  // Draws the addresses at which lanes see regions, so that nobody can guess them.
  using Random = std::function<std::uint64_t()>;

  // A region as the device knows it.
  struct Exposed {
    std::uint64_t bytes = 0;
    std::uint32_t key = 0;  // of peers; of no use to them where only windows give access
    std::uint64_t begin = 0;
    Registration registration;                    // of host memory
    std::unique_ptr<DeviceMemory> device_memory;  // or this
  };
  // A region under a key that is good on one queue pair, and worthless as soon as this ends. The lane binds it, by the key
  // that its peer was told.
  struct Window {
    Owned<ibv_mw, ibv_dealloc_mw> memory_window;
    const Exposed* exposed = nullptr;
    unsigned access = 0;

    ibv_send_wr binding(std::uint32_t key) const;  // of type IBV_WR_BIND_MW
  };
  // What a lane gets of a region. Neither a window nor device memory: the key is good on other lanes, too.
  struct Granted {
    AttachReply::Place place;
    std::optional<Window> window;
    bool on_other_lanes = false;
  };
  // A word of a lane's own, on which its client tries what the device can do.
  struct TrialWord {
    std::unique_ptr<std::uint64_t> word;
    Registration registration;
    AttachReply::Place place;
  };

  Regions(std::shared_ptr<Device> device, std::function<void(const std::string&)> log);

  // Makes the protection domain, unless there is one.
  base::Status open();
  ibv_pd* domain() const { return domain_.get(); }

  // Has the whole region in the device's own memory from now on.
  base::Status place_in_device(base::Bytes region);
  base::Result<Granted> grant(const RegionRight& right, const Random& random);
  base::Result<TrialWord> make_trial_word(const Random& random);

  // Returns the address by which packets name the first byte of a region that clients may write to; 0: no lane has one.
  std::uint64_t begin_of(const std::byte* region) const;
  // Says, once, that keys are good on every lane, and why.
  void say_without_windows(const std::string& why);

 private:
  // What a lane may do to a region by a key of its own, or only through windows that are bound to the lane.
  enum class Access : std::uint8_t { read, write, windows };

  Owned<ibv_mw, ibv_dealloc_mw> make_window(const RegionRight& right);
  base::Result<const Exposed*> expose(const RegionRight& right, Access wanted, const Random& random);

  const std::shared_ptr<Device> device_;
  const std::function<void(const std::string&)> log_;
  ProtectionDomain domain_;                                         // goes last
  std::map<std::pair<const std::byte*, Access>, Exposed> exposed_;  // by beginning
  bool said_without_windows_ = false;
};

}  // namespace farpool::fabric::verbs
